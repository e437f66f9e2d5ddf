// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentrun/control"
)

// Faults in the real binary, at every point that the source has, with every error of faultErrors, SIGKILL and a delay. Whatever was
// reached: the host is as before, the record is sound and true, ps shows no ghost, and nothing has run above its ring.
//
// Without AGENTRUN_TEST_FAULTS=all each point gets one error and SIGKILL; `make faults` runs the product.

var faultErrors = []string{"EIO", "ENOSPC", "EMFILE", "ENOMEM", "EINTR"}

// scenario drives the program past its points, with faults in the supervisor; it gives what that said.
type scenario func(n launchNode, faults string) (log *lockedBuffer, died bool)

// faultRow says how a point is reached. A point that ends in a star is a family: launch and undo have one for each step, record one for
// each kind that the scenarios put on record.
type faultRow struct {
	point string
	by    scenario
	unit  string // reached by no scenario, but by this test
}

func faultRows() []faultRow {
	return []faultRow{
		{point: "launch/*", by: execScenario},
		{point: "undo/*", by: execScenario},
		{point: "container/apart", by: execScenario},
		{point: "record/*", by: liveScenario},
		{point: "audit/write", by: execScenario},
		{point: "audit/sync", by: execScenario},
		{point: "audit/checkpoint", by: execScenario},
		{point: "audit/rotate", unit: "audit/fault_test.go: TestFaultAtRotation"},
		{point: "store/commit", by: sagaScenario},
		{point: "journal/create", by: sagaScenario},
		{point: "journal/put", by: sagaScenario},
		{point: "elevate/lent", by: liveScenario},
		{point: "ring/widen", by: liveScenario},
		{point: "ring/mounts", by: liveScenario},
		{point: "ring/stop", by: liveScenario},
		{point: "ring/end", by: liveScenario},
		{point: "ring/limits", by: liveScenario},
		{point: "ring/go on", by: liveScenario},
		{point: "live/freeze", by: liveScenario},
		{point: "live/thaw", by: liveScenario},
		{point: "live/update", by: liveScenario},
		{point: "live/kill", by: liveScenario},
		{point: "sandbox/create", by: sandboxScenario},
		{point: "sandbox/save", by: sandboxScenario},
		{point: "sandbox/saved", by: sandboxScenario},
		{point: "sandbox/rename", by: sandboxScenario},
		{point: "sandbox/remove", by: sandboxScenario},
		{point: "sandbox/seal", by: sandboxScenario},
		{point: "sandbox/copy", by: sandboxScenario},
		{point: "sandbox/aside", by: sandboxScenario},
		{point: "sandbox/prune", by: sandboxScenario},
		{point: "changes/begin", by: sandboxScenario},
		{point: "sandbox/empty", by: sandboxScenario},
		{point: "sandbox/emptied", by: sandboxScenario},
		{point: "image/names", by: imageScenario},
		{point: "image/base", by: imageScenario},
		{point: "image/commit", by: imageScenario},
		{point: "image/instead", by: signedScenario},
		{point: "image/remove", by: imageScenario},
		{point: "join/begun", by: liveScenario},
		{point: "join/probe", by: liveScenario},
	}
}

// verbs are the points that each change of a live run passes; those that only look have none.
var verbs = map[string][]string{
	"Sandboxes": nil, "Inspect": nil, "Wait": nil, "Events": nil, "Output": nil, "Attach": nil, "Files": nil, "Watch": nil, "Ports": nil,
	"Signal":  nil, // one call, which changes nothing of ours
	"Freeze":  {"live/freeze", "record/*"},
	"Thaw":    {"record/*", "live/thaw"},
	"Pause":   {"live/freeze", "record/*"},
	"Resume":  {"record/*", "live/thaw"},
	"Update":  {"record/*", "live/update"},
	"Extend":  {"record/*"}, // what follows is in memory
	"Elevate": {"record/*", "elevate/lent", "ring/widen", "ring/mounts"},
	"Revoke":  {"record/*", "ring/stop", "ring/end", "ring/mounts", "ring/limits", "ring/go on"},
	"Kill":    {"record/*", "live/freeze", "live/kill"},
	"Exec":    {"record/*", "join/begun", "join/probe"},
	// What the sandbox's own file system says of a copy is its answer.
	"ReadFiles": {"record/*"}, "WriteFiles": {"record/*"},
	"Publish": {"record/*"}, "Unpublish": {"record/*"}, // the rest is in memory, and ends with the supervisor
}

// mustFault are the calls that change something on the disk, by package: the function that makes one has a point, or stands here with
// a reason.
var mustFault = map[string]struct {
	calls  []string
	exempt map[string]string
}{
	"hypervisor":           {[]string{"l.Append", "l.AppendSync", "l.AppendThen"}, nil},
	"audit":                {[]string{"l.sys.write", "l.sys.sync", "os.Rename"}, nil},
	"sagas":                {[]string{"d.store.Update"}, nil},
	"supervisor/sandboxes": {[]string{"os.Rename", "unix.Renameat2", "os.RemoveAll"}, nil},
	"images": {[]string{"os.Rename", "unix.Renameat2", "os.RemoveAll"}, map[string]string{
		"again": "the old or the new of one file, by a rename", "Layers": "as again", "Close": "what it removes is no image yet", "Sweep": "as Close, of a process that is dead",
	}},
}

// source goes over the functions of the program.
func source(t *testing.T, visit func(dir string, fn *ast.FuncDecl)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || slices.Contains([]string{"test", "bin", "testdata", "fault"}, d.Name())) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel(root, filepath.Dir(path))
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				visit(dir, fn)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// callsIn are the calls in a function, as they are written, with their first argument.
func callsIn(fn *ast.FuncDecl, visit func(name string, first ast.Expr)) {
	ast.Inspect(fn, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		var first ast.Expr
		if len(c.Args) > 0 {
			first = c.Args[0]
		}
		visit(written(c.Fun), first)
		return true
	})
}

func written(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return written(e.X) + "." + e.Sel.Name
	}
	return "?"
}

// Every point of the source has a row, every row a point, and every step that changes something a point.
func TestFaultPointsAreComplete(t *testing.T) {
	rows := map[string]bool{}
	for _, r := range faultRows() {
		rows[r.point] = true
	}
	found := map[string]bool{}
	source(t, func(dir string, fn *ast.FuncDecl) {
		points := 0
		callsIn(fn, func(name string, first ast.Expr) {
			if name != "fault.At" {
				return
			}
			points++
			point := ""
			switch e := first.(type) {
			case *ast.BasicLit:
				point, _ = strconv.Unquote(e.Value)
			case *ast.BinaryExpr:
				if lit, ok := e.X.(*ast.BasicLit); ok {
					point, _ = strconv.Unquote(lit.Value)
					point += "*"
				}
			}
			if !rows[point] {
				t.Errorf("%s: %s: point %q has no row in faultRows", dir, fn.Name.Name, point)
			}
			found[point] = true
		})
		rule, ok := mustFault[dir]
		if !ok || points > 0 || rule.exempt[fn.Name.Name] != "" {
			return
		}
		callsIn(fn, func(name string, _ ast.Expr) {
			if slices.Contains(rule.calls, name) {
				t.Errorf("%s: %s calls %s and has no point for a fault", dir, fn.Name.Name, name)
			}
		})
	})
	for point := range rows {
		if !found[point] {
			t.Errorf("row %q: the source has no such point", point)
		}
	}
	c := reflect.TypeFor[control.Controller]()
	for i := range c.NumMethod() {
		if _, ok := verbs[c.Method(i).Name]; !ok {
			t.Errorf("verb %s isn't in verbs: which points does it pass?", c.Method(i).Name)
		}
	}
	for verb, points := range verbs {
		for _, p := range points {
			if !found[p] {
				t.Errorf("verb %s: the source has no point %s", verb, p)
			}
		}
	}
}

// execScenario is one run, of an agent with a score, with a call that is refused.
func execScenario(n launchNode, faults string) (*lockedBuffer, bool) {
	log := &lockedBuffer{}
	c := n.exec(faults, []string{"--agent", "planner-1", "--ring", "3", "--no-gateway"}, "fork", "exit 0")
	c.Stderr = log
	err := c.Run()
	return log, bySIGKILL(err)
}

// puppet is a live run whose supervisor may die at any moment.
type puppet struct {
	n    launchNode
	c    *exec.Cmd
	say  *os.File
	from *os.File
	hear *bufio.Reader
	dead chan struct{}
	log  *lockedBuffer
	made int

	within time.Duration // for an answer; 0: long
}

func (n launchNode) puppet(faults string) *puppet {
	n.t.Helper()
	ws := n.t.TempDir()
	if err := os.Chmod(ws, 0o755); err != nil {
		n.t.Fatal(err)
	}
	p := &puppet{n: n, dead: make(chan struct{}), log: &lockedBuffer{}}
	p.c = n.exec(faults, []string{"--name", "puppet", "--agent", "planner-1", "--ring", "3", "--workspace", ws, "--no-gateway", "--timeout", "60s", "--cpu-time", "60s"}, "live")
	in, say, err1 := os.Pipe()
	from, out, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		n.t.Fatal(err1, err2)
	}
	p.say, p.from, p.hear = say, from, bufio.NewReader(from)
	p.c.Stdin, p.c.Stdout, p.c.Stderr = in, out, p.log
	if err := p.c.Start(); err != nil {
		n.t.Fatal(err)
	}
	in.Close()
	out.Close()
	go func() { defer close(p.dead); _ = p.c.Wait() }()
	n.t.Cleanup(func() {
		_ = p.c.Process.Kill()
		<-p.dead
		say.Close()
		from.Close()
	})
	return p
}

// line is the agent's next word, or false if none comes.
func (p *puppet) line() (string, bool) {
	_ = p.from.SetReadDeadline(time.Now().Add(cmp.Or(p.within, time.Duration(slow*float64(20*time.Second)))))
	s, err := p.hear.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err == nil
}

func (p *puppet) try(words string) string {
	fmt.Fprintln(p.say, words)
	for {
		line, ok := p.line()
		if !ok {
			return ""
		}
		if got, ok := strings.CutPrefix(line, words+": "); ok {
			return got
		}
	}
}

// goesOn says whether the agent runs, and holds what ps says of it against whether it answers.
func (p *puppet) goesOn(after string) bool {
	p.n.t.Helper()
	list := p.n.list()
	if len(list) != 1 {
		return false // it is over
	}
	within := time.Duration(slow * float64(5*time.Second))
	frozen := list[0].State == "frozen" || list[0].State == "paused"
	if frozen {
		within = time.Duration(slow * float64(200*time.Millisecond))
	}
	p.within = within
	defer func() { p.within = 0 }()
	answers := p.try("fork") != ""
	if frozen == answers && len(p.n.list()) == 1 {
		p.n.t.Errorf("after %s: ps says %s, and the agent answers: %v", after, list[0].State, answers)
	}
	return answers
}

// notAboveItsRing: what ring 2 has, the agent has only while an elevation is on record that hasn't ended there. The record first, then the
// try, then the record again: the first may be behind what was decided since.
func (p *puppet) notAboveItsRing(after string) {
	p.n.t.Helper()
	select {
	case <-p.dead:
		return
	default:
	}
	p.made++
	can := p.try(fmt.Sprintf("create /workspace/%d", p.made)) == "ok" || p.try("fork") == "ok"
	granted, ended := causes(p.n.audit())
	if can && granted <= len(ended) {
		p.n.t.Errorf("after %s: the agent has what ring 2 has, and the record has %d elevations with %d ends", after, granted, len(ended))
	}
}

// liveScenario goes through the verbs on one live run. What a verb answers is its own business; what holds afterwards isn't.
func liveScenario(n launchNode, faults string) (*lockedBuffer, bool) {
	p := n.puppet(faults)
	if word, ok := p.line(); ok && word == "ready" {
		for _, args := range [][]string{
			{"elevate", "puppet", "--to", "2", "--ttl", "60s", "--reason", "a test"},
			{"update", "puppet", "--pids", "70"},
			{"exec", "--in", "puppet", "--", "/bin/true"},
			{"cp", "puppet:/etc/passwd", "-"},
			{"freeze", "puppet"},
			{"thaw", "puppet"},
			{"port", "publish", "puppet", "9"},
			{"port", "rm", "puppet", "9"},
			{"pause", "puppet"},
			{"resume", "puppet"},
			{"revoke", "puppet"},
			{"elevate", "puppet", "--to", "2", "--ttl", "60s", "--reason", "once more"},
		} {
			n.do(args...)
			if p.goesOn(args[0]) {
				p.notAboveItsRing(args[0])
			}
		}
		n.do("kill", "puppet", "--reason", "over")
	}
	select {
	case <-p.dead:
	case <-time.After(time.Duration(slow * float64(20*time.Second))):
		n.t.Errorf("the run doesn't end\n%s", p.log)
		_ = p.c.Process.Kill()
		<-p.dead
		return p.log, true
	}
	return p.log, p.c.ProcessState.ExitCode() < 0
}

// sagaScenario runs two steps; then, without faults, what is left of it.
func sagaScenario(n launchNode, faults string) (*lockedBuffer, bool) {
	file := write(n.t, filepath.Join(n.t.TempDir(), "saga.yaml"), `name: trip
steps:
  - id: a
    idempotent: true
    execute: {command: [/bin/true], ring: 3}
  - id: b
    idempotent: true
    execute: {command: [/bin/true], ring: 3}
`, 0o644)
	log := &lockedBuffer{}
	c := n.command(faults, "saga", "run", "--id", "s", file)
	c.Stderr = log
	err := c.Run()
	n.nobodyIsLeft() // its steps are runs of their own
	if r := n.do("saga", "resume", "s"); r.exit != 0 && !strings.Contains(r.stderr, "no such saga") {
		n.t.Errorf("saga resume: exit %d, want it committed, or never begun\n%s%s", r.exit, r.stdout, r.stderr)
	}
	return log, bySIGKILL(err)
}

// sandboxScenario takes a kept sandbox through its life. It is there or not, under one name, whole, whatever fails; and goes.
func sandboxScenario(n launchNode, faults string) (log *lockedBuffer, died bool) {
	log = &lockedBuffer{}
	ws := workspace(n.t)
	for _, args := range [][]string{
		{"create", "--name", "s", "--ring", "2", "--no-gateway", "--workspace", ws, "--workspace-mode", "overlay"}, {"start", "s"},
		{"exec", "--in", "s", "--", "/bin/sh", "-c", "echo x > /workspace/x; mkdir /workspace/d; echo y > /workspace/d/y"},
		{"snapshot", "s", "live"}, {"stop", "s"}, {"fork", "s", "u"}, {"apply", "s"}, {"rollback", "s", "live"}, {"discard", "s"},
		{"rm", "u"}, {"rename", "s", "t"}, {"rm", "t"},
	} {
		c := n.command(faults, args...)
		c.Stderr = log
		// A start is a process of its own, which outlives the command.
		died = bySIGKILL(c.Run()) || strings.Contains(log.String(), "the supervisor ended before the run began")
		if died {
			break
		}
	}
	var list []struct{ Name, State string }
	if err := json.Unmarshal([]byte(n.must("ps", "--all", "--json").stdout), &list); err != nil {
		n.t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(s struct{ Name, State string }) bool { return s.State == "ended" })
	if of := slices.DeleteFunc(slices.Clone(list), func(s struct{ Name, State string }) bool { return s.Name == "u" }); len(of) > 1 {
		n.t.Errorf("of one sandbox there are %+v", list)
	}
	for _, s := range list {
		n.must("stop", s.Name)
		// All of what it changed, or nothing, waits: half of it would be another change.
		if text := n.must("diff", "--stat", s.Name).stdout; text != "" && (!strings.HasPrefix(text, "added    d/\nadded    d/y ") || !strings.Contains(text, "\nadded    x ")) {
			n.t.Errorf("its changes are %s", text)
		}
		n.must("start", s.Name)
		n.must("rm", "-f", s.Name)
	}
	n.must("gc")
	if left, _ := filepath.Glob(filepath.Join(n.state, "[sl]a[ny]*", "*")); len(left) > 0 {
		n.t.Errorf("left: %v", left)
	}
	return log, died
}

// points are those of a family, and of others the one.
func (r faultRow) points(t *testing.T) (all []string) {
	family, ok := strings.CutSuffix(r.point, "*")
	switch {
	case !ok:
		return []string{r.point}
	case family == "record/":
		n := newLaunchNode(t)
		n.must("agent", "score", "planner-1", "0.7")
		before := len(n.audit())
		r.by(n, "")
		for _, e := range n.audit()[before:] {
			if e.Kind != "key" && !slices.Contains(all, family+e.Kind) { // the key comes before the first record, once
				all = append(all, family+e.Kind)
			}
		}
		return all
	}
	for _, s := range stepNames(t) {
		if family == "launch/" || !slices.Contains(notUndone, s) {
			all = append(all, family+s)
		}
	}
	return all
}

func TestFaults(t *testing.T) {
	needSandbox(t)
	whole := os.Getenv("AGENTRUN_TEST_FAULTS") == "all"
	i := 0
	for _, row := range faultRows() {
		if row.unit != "" {
			continue
		}
		points := row.points(t)
		if len(points) == 0 {
			t.Errorf("%s: no point", row.point)
		}
		for _, point := range points {
			actions := []string{faultErrors[i%len(faultErrors)], "kill"}
			i++
			if whole {
				actions = append(slices.Clone(faultErrors), "kill", "delay:"+scaled(300*time.Millisecond))
			} else if strings.HasPrefix(point, "launch/") || strings.HasPrefix(point, "undo/") {
				actions = actions[:1] // the tests of launch_test.go kill there
			}
			for _, action := range actions {
				t.Run(point+"="+action, func(t *testing.T) {
					t.Parallel() // each in a node of its own
					row.try(t, point, action)
				})
			}
		}
	}
}

// recorded are the runs that the record knows.
func (n launchNode) recorded() (ids []string) {
	for _, e := range n.audit() {
		if id, ok := e.Data["run_id"].(string); ok {
			ids = append(ids, id)
		}
	}
	return append(ids, n.runs()...)
}

func (r faultRow) try(t *testing.T, point, action string) {
	n := newLaunchNode(t)
	n.must("agent", "score", "planner-1", "0.7")
	log, died := r.by(n, point+"="+action)
	if !log.reached() {
		t.Errorf("the point wasn't reached\n%s", log)
	}
	if died != (action == "kill") {
		t.Errorf("killed: %v\n%s", died, log)
	}
	n.nobodyIsLeft()
	ids := n.runs()
	if died {
		n.must("gc")
	} else if len(ids) > 0 {
		t.Errorf("left in the run folder without a kill: %v\n%s", ids, log)
	}
	n.nothingIsLeft(n.recorded())
	// One more run, which finds a record that it can go on with.
	out, err := n.exec("", []string{"--agent", "planner-1", "--ring", "3", "--no-gateway"}, "exit 0").CombinedOutput()
	if err != nil {
		t.Errorf("the next run: %v\n%s", err, out)
	}
	n.sound()
	if t.Failed() {
		t.Logf("the supervisor said:\n%s", log)
	}
}
