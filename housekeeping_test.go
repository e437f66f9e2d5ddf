// SPDX-License-Identifier: Apache-2.0

// Package agentrun holds no code; its tests keep the rules of the whole tree that
// no compiler checks. Each failure names the file and the rule's reason.
package agentrun

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// notOurs are folders that hold what is built or what other tools keep.
var notOurs = []string{".git", ".cache", ".vagrant", "bin", "test/out"}

// files lists the tree's regular files, slash-separated, that keep wants.
func files(t *testing.T, keep func(name string) bool) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			if slices.Contains(notOurs, name) || path.Base(name) == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && keep(name) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("no files: a check of nothing is no check")
	}
	return names
}

func ending(suffixes ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parse(t *testing.T, name string) (*token.FileSet, *ast.File) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return set, f
}

func TestLicenceHeader(t *testing.T) {
	const header = "SPDX-License-Identifier: Apache-2.0"
	for _, name := range files(t, ending(".go")) {
		if !strings.HasPrefix(read(t, name), "// "+header+"\n\n") {
			t.Errorf("%s: want %q as its first line, then an empty one", name, "// "+header)
		}
	}
	for _, name := range files(t, ending(".c", ".h", ".sh", ".py", "-init", ".ci/run", "Makefile", "Vagrantfile", ".golangci.yml")) {
		// A script's first line is its interpreter.
		lines := strings.SplitN(read(t, name), "\n", 3)
		if !strings.Contains(strings.Join(lines[:min(2, len(lines))], "\n"), header) {
			t.Errorf("%s: want %q in its first two lines", name, header)
		}
	}
}

func TestOnePackageComment(t *testing.T) {
	type pkg struct{ code, tests, commented, commentedTests []string }
	pkgs := map[string]*pkg{}
	for _, name := range files(t, ending(".go")) {
		_, f := parse(t, name)
		key := path.Dir(name) + " " + strings.TrimSuffix(f.Name.Name, "_test")
		p := pkgs[key]
		if p == nil {
			p = &pkg{}
			pkgs[key] = p
		}
		test := strings.HasSuffix(name, "_test.go")
		if test {
			p.tests = append(p.tests, name)
		} else {
			p.code = append(p.code, name)
		}
		if f.Doc != nil && test {
			p.commentedTests = append(p.commentedTests, name)
		} else if f.Doc != nil {
			p.commented = append(p.commented, name)
		}
	}
	for key, p := range pkgs {
		commented := p.commented
		if len(p.code) == 0 {
			commented = p.commentedTests
		} else if len(p.commentedTests) > 0 {
			t.Errorf("%s: package comment in %v, want it beside the code", key, p.commentedTests)
		}
		if len(commented) != 1 {
			t.Errorf("%s: %d package comments %v, want exactly one: it is the package's contract", key, len(commented), commented)
		}
	}
}

// leaves are the mechanisms. Each is read, tested and trusted by itself; what they
// mean together is said in one place, runtime.
var leaves = []string{"seccomp", "cgroups", "netns", "fsjail", "profiles", "internal/hostcaps"}

// forbidden says what a package must not depend on, even through others.
func forbidden() map[string]map[string]string {
	rules := map[string]map[string]string{}
	for _, leaf := range leaves {
		rules[leaf] = map[string]string{
			"net/http":         "a mechanism that runs as root beside the agent serves and fetches nothing",
			"agentrun/runtime": "runtime composes the mechanisms; the other way round is a cycle of ideas",
		}
		for _, other := range leaves {
			if other != leaf {
				rules[leaf]["agentrun/"+other] = "mechanisms don't know each other; runtime composes them"
			}
		}
	}
	rules["runtime"] = map[string]string{
		"github.com/urfave/cli/v2": "flags are the business of cmd; the daemon will call runtime without any",
		"net/http":                 "start-up budget: its init is paid twice at each run; the control API gets its own package",
		"agentrun/hypervisor":      "runtime tells an Observer what happens; who judges and records it stands above",
		"agentrun/audit":           "as hypervisor: a run has one account, and the hypervisor keeps it",
		"agentrun/store":           "as hypervisor",
	}
	for pkg := range deciding() {
		if pkg == "pdp/authzen" {
			continue // it speaks HTTPS to the remote PDP, and is not linked into cmd/agentrun
		}
		rules[pkg] = map[string]string{
			"net/http":                 "start-up budget: it is linked into the binary that every run starts twice; sagas/httpstep speaks to the loopback by itself",
			"crypto/tls":               "start-up budget: 0.3 ms",
			"encoding/gob":             "start-up budget: 0.2 ms; and what is kept is JSON, which others can read",
			"github.com/urfave/cli/v2": "flags are the business of cmd",
		}
	}
	rules["cmd/agentrun"] = map[string]string{
		"net/http":                           "start-up budget: its init is paid twice at each run; and no server belongs into the launch path",
		"testing":                            "it registers flags on the command line",
		"encoding/gob":                       "0.2 ms of start-up",
		"agentrun/images/unpack":             "what strangers have packed is read by agentrun-image alone",
		"agentrun/images/signed":             "crypto/x509, and only a pull needs it",
		"github.com/klauspost/compress/zstd": "as agentrun/images/unpack",
		"plugin":                             "nobody loads code into the supervisor",
		"net/rpc":                            "one protocol to the sandbox, one type for it",
		"crypto/tls":                         "0.3 ms of start-up; sagas call APIs on the loopback only",
		"crypto/x509":                        "2 MiB resident: every run would pay for the CA that few need",
	}
	return rules
}

// deciding says for each package that decides and remembers which of ours it may build upon, and why no more. Those with
// an empty list are read, tested and trusted by themselves, as the mechanisms are.
func deciding() map[string]struct {
	may []string
	why string
} {
	type rule = struct {
		may []string
		why string
	}
	return map[string]rule{
		"rings":            {nil, "policy is pure: what it decides must not depend on who asks, keeps or enforces"},
		"rings/paths":      {[]string{"rings"}, "it answers in the words of rings, about files and nothing else"},
		"audit":            {nil, "a log that knew what it records could not be verified without it"},
		"store":            {nil, "it keeps bytes; what they mean is its users' business"},
		"audit/heads":      {[]string{"audit", "store"}, "it joins the two and decides nothing"},
		"witness":          {nil, "who may present an attestation is decided elsewhere; whether it is good must be checkable alone"},
		"sagas":            {[]string{"rings", "audit", "store"}, "it runs steps that others bring; what runs a sandbox is one of those"},
		"sagas/sagafile":   {[]string{"rings", "audit", "store", "sagas"}, "a file is data: what it names is run by a Runner that is passed in"},
		"sagas/httpstep":   {[]string{"rings", "audit", "store", "sagas", "sagas/sagafile", "internal/wire"}, "one call to one API, whose answer is read as those of the gateway's upstreams are"},
		"conform":          {[]string{"rings", "rings/paths", "audit", "store", "sagas"}, "it asks the rules themselves, and touches nothing on the host"},
		"hypervisor":       {belowSupervisor(), "it puts the rules, the state and the record together; only supervisor and cmd are above it"},
		"toolproxy/dns":    {[]string{"internal/pace"}, "it answers by a function that is passed in, on sockets that are passed in: who allows and where they are is others' business"},
		"pdp":              {[]string{"rings"}, "a policy decision must be testable, and explainable to an operator, without a sandbox"},
		"pdp/authzen":      {[]string{"rings", "pdp", "internal/upstream", "toolproxy/egress"}, "it asks another for the same decision, in the words of pdp, over the connection that all upstreams have"},
		"toolproxy/egress": {[]string{"rings"}, "where a run may connect is decided by bytes alone; who resolves, dials and records stands above"},
		"store/storetest":  {[]string{"store"}, "it tests any store"},
		"governance":       {[]string{"rings"}, "what a plan gives is arithmetic over what was booked; who books and where stands above"},

		"toolproxy/link":          {[]string{"rings", "safetyloop/judge"}, "supervisor and gateway meet in it: it is linked into both, and the supervisor stays small"},
		"toolproxy/forward/runca": {[]string{"rings", "toolproxy/link", "safetyloop/judge"}, "it makes one CA and knows nothing of connections"},

		"control":        {[]string{"rings", "internal/uhttp", "internal/wire", "internal/agentuid", "internal/early", "internal/rootless", "internal/subid"}, "operators reach a run through it; what is decided and done there stands behind its Controller"},
		"internal/uhttp": {[]string{"internal/wire"}, "it speaks HTTP and knows nothing of what is said"},

		"internal/agentuid": {nil, "it is one number"},
		"internal/beneath":  {nil, "it reads and writes files of one folder; whose they are, and who may, is decided above"},
		"meter":             {[]string{"rings", "store", "internal/mapped"}, "it counts by name; who is admitted, held or told is decided above"},
		"internal/mapped":   {nil, "it touches memory; what lies there is its users' business"},
		"internal/kept":     {nil, "it keeps bytes; what they follow from is its users' business"},
		"internal/pace":     {nil, "it is a clock and a number"},
		"internal/read":     {nil, "what others write is read in one way, whatever it is about"},
		"internal/mounts":   {nil, "what two paths have in common is the kernel's to say; what follows from it is decided elsewhere"},
		"internal/subid":    {nil, "it reads a file's text"},
		"internal/rootless": {[]string{"internal/early", "internal/subid"}, "it comes before everything else of the program"},

		"safetyloop/judge": {nil, "what a hint says is judged in one process and decided about in another"},
		"safetyloop":       {[]string{"rings", "audit", "store", "safetyloop/judge"}, "it decides; who asks, shows codes and freezes stands outside"},
		"safetyloop/desk":  {[]string{"rings", "audit", "store", "safetyloop", "safetyloop/judge", "control", "internal/uhttp", "internal/wire", "internal/agentuid", "internal/early", "internal/rootless", "internal/subid"}, "operators reach a loop through the control socket"},

		"images":        {[]string{"internal/claim", "internal/hinted"}, "it keeps folders; where images come from is another program's business, and what runs they are shown to is told by the supervisor"},
		"images/based":  {[]string{"images", "internal/claim", "internal/hinted"}, "it joins two folders; which ones is told above"},
		"images/unpack": {[]string{"images", "internal/claim", "internal/hinted"}, "it reads what strangers have packed, and knows nothing of where it came from"},
		"images/pack":   {[]string{"internal/beneath"}, "it reads folders and writes tars; whose they are is told above"},
		"images/signed": {nil, "whether a signature is good must be checkable alone"},

		"config": {[]string{"internal/read", "supervisor/outputs", "telemetry/runlog", "telemetry/mask"}, "it reads files; what they mean to a run is told by whoever asks"},

		"profiles/agents": {[]string{"profiles", "internal/hinted"}, "it describes programs and finds them; what becomes of a description is told by flags of exec"},

		"internal/hinted":           {nil, "an error with the way out must be usable everywhere"},
		"internal/ending":           {[]string{"internal/hinted", "internal/read", "internal/shown"}, "small programs end by it too"},
		"supervisor/killhooks":      {append([]string{"internal/hinted", "internal/shown", "internal/sibling"}, belowSupervisor()...), "it runs the operator's programs about one run; who asked for the run, and how, is not its business"},
		"supervisor":                {besideRuns(), "what is asked for is data: whoever asks, by flags or otherwise, fills it in; where a run is supervised is told by a Host"},
		"supervisor/live":           {append([]string{"supervisor/killhooks", "supervisor/ports", "control", "safetyloop/desk", "internal/hinted", "internal/shown", "internal/sibling", "internal/uhttp", "internal/wire"}, belowSupervisor()...), "operators reach runs through it; who asked for a run, what started it and what is printed is others' business"},
		"supervisor/ports":          {[]string{"internal/wire"}, "it lets connections in; which run they lead to and who decides about them are functions that are passed in"},
		"supervisor/precheck":       {[]string{"internal/kept", "internal/read", "rings", "toolproxy/link", "safetyloop/judge"}, "it asks a program about one run; who asked for the run, and what follows from the answer, is not its business"},
		"supervisor/toolcmd":        {append([]string{"runtime"}, belowRuntime()...), "it starts agentrun for a tool; which tools a run has is told by the gateway and decided by the hypervisor"},
		"supervisor/homes":          {[]string{"profiles", "internal/beneath", "internal/claim"}, "it keeps folders; what runs they are shown to is told by the supervisor"},
		"supervisor/sandboxes":      {[]string{"profiles", "fsjail", "internal/mounts", "internal/thread", "internal/beneath", "internal/claim", "supervisor/homes"}, "it keeps what is known of sandboxes, and the layers that fsjail puts on each other; what runs they are is told by the supervisor"},
		"supervisor/outputs":        {[]string{"telemetry/runlog", "telemetry/mask"}, "it keeps files for people; what runs are it needn't know"},
		"supervisor/tidy":           {nil, "it knows this process's pages and nothing else"},
		"supervisor/daemon":         {append([]string{"supervisor", "supervisor/daemon/queue", "supervisor/daemon/pool", "supervisor/daemon/systemd", "internal/handoff", "telemetry/scrape"}, besideRuns()...), "it carries out requests of many callers; what their command lines mean is told by a function that is passed in"},
		"supervisor/sagarun":        {append([]string{"supervisor", "sagas/sagafile", "sagas/httpstep"}, besideRuns()...), "it joins the orchestrator to a node and to what steps are; what a person is told stands above"},
		"supervisor/daemon/queue":   {[]string{"cgroups", "internal/hinted", "internal/hostcaps", "internal/thread", "internal/early", "internal/rootless", "internal/subid"}, "who comes next is told by numbers, memory and the order; what a run is it needn't know"},
		"supervisor/changes":        {append([]string{"runtime", "internal/hinted"}, belowRuntime()...), "it keeps what ended runs have left; what a run is it needn't know"},
		"supervisor/daemon/pool":    {append([]string{"runtime"}, belowRuntime()...), "it keeps what runtime has prepared; who gets one is the daemon's business"},
		"supervisor/daemon/systemd": {nil, "it speaks one protocol"},

		"telemetry":        {nil, "a type that refuses to print must be usable everywhere"},
		"telemetry/counts": {[]string{"internal/mapped"}, "it counts what it is told; what a run is it needn't know"},
		"telemetry/scrape": {nil, "it decides about addresses; what is served there it needn't know"},
		"telemetry/mask":   {nil, "what is secret must not depend on who logs it"},
		"telemetry/trace":  {nil, "names of spans are handed on by everybody"},
		"telemetry/runlog": {[]string{"telemetry/mask"}, "it writes what it is given, masked; what a run is it needn't know"},
	}
}

// everybodys are packages that any may build upon: a fault stands where the step does, what is read from others is read
// strictly everywhere, and what must not be printed refuses wherever it goes.
func everybodys(pkg string) bool {
	return slices.Contains([]string{"internal/fault", "internal/read", "telemetry"}, pkg)
}

// besideRuns is what one run is carried out with, from the request to the account.
func besideRuns() []string {
	return append([]string{
		"config", "images", "images/based", "images/pack", "supervisor/homes", "supervisor/sandboxes", "supervisor/live", "supervisor/changes", "supervisor/killhooks", "supervisor/outputs", "supervisor/ports", "supervisor/precheck", "supervisor/tidy",
		"supervisor/toolcmd", "control", "safetyloop/desk",
		"telemetry/mask", "telemetry/runlog", "telemetry/trace", "internal/claim", "internal/ending", "internal/hinted", "internal/shown", "internal/sibling", "internal/uhttp", "internal/wire",
	}, belowSupervisor()...)
}

// belowSupervisor is the hypervisor and what it puts together.
func belowSupervisor() []string {
	return append([]string{"hypervisor", "meter", "safetyloop", "rings", "rings/paths", "audit", "audit/heads", "store", "witness", "sagas", "runtime", "governance", "telemetry/mask", "telemetry/counts", "internal/mapped"}, belowRuntime()...)
}

// belowRuntime is what runtime brings along.
func belowRuntime() []string {
	return append([]string{"internal/beneath", "internal/kept", "internal/mounts", "internal/thread", "internal/agentuid", "internal/early", "internal/rootless", "internal/subid", "runtime/internal/stub", "toolproxy/link", "safetyloop/judge", "rings"}, leaves...)
}

// serving says the same of the gateway's packages, which speak HTTP and are linked into cmd/agentrun-gateway only.
func serving() map[string][]string {
	entrance := []string{"internal/fold", "internal/upstream", "rings", "pdp", "telemetry/mask", "toolproxy/link", "safetyloop/judge", "toolproxy/gate", "toolproxy/boundary", "toolproxy/egress"}
	registry := append([]string{"toolproxy/tools", "internal/pace"}, entrance...)
	return map[string][]string{
		"toolproxy/boundary":  {"telemetry/mask", "internal/fold"},
		"toolproxy/gate":      entrance,
		"toolproxy/tools":     append([]string{"internal/pace"}, entrance...),
		"toolproxy/mcpserver": append([]string{"internal/mcpbound"}, registry...),
		"toolproxy/builtin":   registry,
		"toolproxy/httptool":  registry,
		"toolproxy/cmdtool":   registry,
		"toolproxy/webtool":   append([]string{"toolproxy/httptool"}, registry...),
		"toolproxy/mcptool":   append([]string{"toolproxy/httptool", "toolproxy/cmdtool"}, registry...),
		"toolproxy/llm":       entrance,
		"toolproxy/router":    entrance,
		"toolproxy/forward":   append([]string{"toolproxy/dns", "internal/pace", "internal/wire", "toolproxy/forward/intercept"}, entrance...),
		"internal/fold":       nil,
		"internal/mcpbound":   nil,
		"internal/upstream":   {"rings", "toolproxy/egress"},
		"safetyloop/risk":     {"internal/fold"},
		"safetyloop/policy":   {"internal/fold", "safetyloop/risk", "safetyloop/judge"},
		"internal/safetycmd":  {"internal/verb", "internal/hinted", "internal/shown"},
		"internal/shown":      nil,
		"internal/wire":       nil,
		"toolproxy/names":     nil,
		"toolproxy/breaker":   append([]string{"toolproxy/tools"}, entrance...),
		"toolproxy/elevation": registry,
		"toolproxy/safety":    append([]string{"safetyloop/tool"}, registry...),
		"safetyloop/tool":     {"safetyloop/judge"},
		"telemetry/metrics":   append([]string{"telemetry/counts", "telemetry/scrape", "internal/mapped"}, entrance...),
		"telemetry/otel":      append([]string{"telemetry/metrics", "telemetry/counts", "telemetry/scrape", "internal/mapped", "telemetry/runlog", "telemetry/trace"}, entrance...),
		"internal/confine":    nil,
		"internal/sibling":    nil,
		"internal/policycmd":  {"internal/verb", "internal/hinted", "internal/shown"},
		"internal/verb":       {"internal/hinted", "internal/shown"},
	}
}

// The gateway's parts don't reach past the link: what holds over all runs is the supervisor's. And the supervisor, which is
// started for each run and once more as the container's init, has none of the gateway in it.
func TestGatewayAndSupervisorMeetOnTheLink(t *testing.T) {
	for pkg, may := range serving() {
		for _, dep := range deps(t, pkg) {
			name, ours := strings.CutPrefix(dep, "agentrun/")
			if ours && name != pkg && !everybodys(name) && !slices.Contains(may, name) {
				t.Errorf("%s depends on %s: the gateway's packages build upon each other as serving() says", pkg, dep)
			}
		}
	}
	shared := []string{"toolproxy/link", "telemetry/trace", "telemetry/runlog", "telemetry/mask", "internal/sibling", "internal/policycmd", "internal/safetycmd", "internal/shown", "internal/verb", "internal/wire"}
	for _, dep := range deps(t, "cmd/agentrun") {
		name, ours := strings.CutPrefix(dep, "agentrun/")
		_, gateway := serving()[name]
		if ours && (gateway || strings.HasPrefix(name, "toolproxy/") || strings.HasPrefix(name, "pdp")) && !slices.Contains(shared, name) {
			t.Errorf("cmd/agentrun is linked with %s: each run would pay for it at its start; it belongs into agentrun-gateway", name)
		}
	}
}

func TestWhoBuildsUponWhom(t *testing.T) {
	for pkg, rule := range deciding() {
		for _, dep := range deps(t, pkg) {
			name, ours := strings.CutPrefix(dep, "agentrun/")
			if ours && name != pkg && !everybodys(name) && !slices.Contains(rule.may, name) {
				t.Errorf("%s depends on %s: %s", pkg, dep, rule.why)
			}
		}
	}
}

// Rules that could look something up would have to be asked twice to be tested once.
func TestRingsDoNoIO(t *testing.T) {
	forbidden := []string{"os", "os/exec", "net", "syscall", "path/filepath", "io/fs", "log", "log/slog", "golang.org/x/sys/unix"}
	for _, name := range files(t, func(n string) bool {
		return slices.Contains([]string{"rings", "toolproxy/egress"}, path.Dir(n)) && strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go")
	}) {
		for _, imported := range imports(t, name) {
			if slices.Contains(forbidden, imported) {
				t.Errorf("%s imports %s: it decides, it neither looks nor writes; rings/paths opens files, the tool proxy sockets", name, imported)
			}
		}
	}
}

// Each library with a sharp edge has one package that knows it.
func TestOneOwnerPerLibrary(t *testing.T) {
	owners := map[string][]string{
		"go.etcd.io/bbolt":            {"store"},
		"golang.org/x/mod/sumdb/note": {"audit", "witness"},
		"go.yaml.in/yaml/v3":          {"internal/read"}, // it closes YAML's traps
	}
	for _, name := range files(t, func(n string) bool { return strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go") }) {
		for _, imported := range imports(t, name) {
			for library, by := range owners {
				if (imported == library || strings.HasPrefix(imported, library+"/")) && !slices.Contains(by, path.Dir(name)) {
					t.Errorf("%s imports %s, which is the business of %v", name, imported, by)
				}
			}
		}
	}
}

// Rules for what others write, and the words that tell a mistake, are those of internal/read.
func TestOneStrictReader(t *testing.T) {
	for _, name := range files(t, func(n string) bool { return strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go") }) {
		if path.Dir(name) != "internal/read" && strings.Contains(read(t, name), "DisallowUnknownFields") {
			t.Errorf("%s reads JSON strictly by itself: read.JSON is for what others write, read.Exactly for what our programs wrote", name)
		}
		// audit's stands at an offset of a chain, seccomp's at a system call of a rule.
		if !slices.Contains([]string{"internal/read", "audit", "seccomp"}, path.Dir(name)) && strings.Contains(read(t, name), "\ntype Problem ") {
			t.Errorf("%s has a Problem of its own: read.Problem has file, line, path and message", name)
		}
	}
}

// What is linked in is somebody's decision, and docs/dependencies.md has its reason.
func TestEveryDependencyHasItsReason(t *testing.T) {
	docs := read(t, "docs/dependencies.md")
	var explained []string
	for _, m := range regexp.MustCompile("`([a-z0-9.-]+\\.[a-z]+/[^`]+)`").FindAllStringSubmatch(docs, -1) {
		explained = append(explained, m[1])
	}
	for _, name := range files(t, ending(".go")) {
		for _, imported := range imports(t, name) {
			if host, _, _ := strings.Cut(imported, "/"); !strings.Contains(host, ".") {
				continue
			}
			if !slices.ContainsFunc(explained, func(m string) bool { return imported == m || strings.HasPrefix(imported, m+"/") }) {
				t.Errorf("%s imports %s, which docs/dependencies.md doesn't explain", name, imported)
			}
		}
	}
}

func imports(t *testing.T, name string) []string {
	t.Helper()
	_, f := parse(t, name)
	var paths []string
	for _, imp := range f.Imports {
		if p, err := strconv.Unquote(imp.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// deps are the packages that pkg is linked with.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags=urfave_cli_no_docs", "-deps", "./"+pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps ./%s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}

func TestForbiddenImports(t *testing.T) {
	for pkg, why := range forbidden() {
		if _, err := os.Stat(pkg); err != nil {
			t.Errorf("%s: %v", pkg, err)
			continue
		}
		for _, dep := range deps(t, pkg) {
			if reason, bad := why[dep]; bad {
				t.Errorf("%s depends on %s: %s (see: go list -deps; go mod why)", pkg, dep, reason)
			}
		}
	}
}

func TestStandardRuntimeIsAliased(t *testing.T) {
	for _, name := range files(t, ending(".go")) {
		_, f := parse(t, name)
		for _, imp := range f.Imports {
			if imp.Path.Value == `"runtime"` && (imp.Name == nil || imp.Name.Name != "goruntime") {
				t.Errorf(`%s: import goruntime "runtime": runtime alone reads as agentrun/runtime`, name)
			}
		}
	}
}

func TestErrorsNameTheOperation(t *testing.T) {
	phrase := regexp.MustCompile(`(?i)\b(failed to|unable to)\b`)
	for _, name := range files(t, func(n string) bool { return strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go") }) {
		set, f := parse(t, name)
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if fn := selector(call); fn != "fmt.Errorf" && fn != "errors.New" {
				return true
			}
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			if text, err := strconv.Unquote(lit.Value); err == nil && phrase.MatchString(text) {
				t.Errorf("%s: %s: name operation and object (\"mount /proc: …\"); that it failed is known from its being an error", set.Position(lit.Pos()), lit.Value)
			}
			return true
		})
	}
}

func selector(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + sel.Sel.Name
}

// A skip is only allowed where it tells what the machine lacks, in the words that
// tools/testtable reads: in need and its helpers, or by a literal "need: …".
func TestNoBareSkip(t *testing.T) {
	for _, name := range files(t, ending("_test.go")) {
		set, f := parse(t, name)
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || strings.HasPrefix(fn.Name.Name, "need") {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				_, method, _ := strings.Cut(selector(call), ".")
				switch method {
				case "Skip", "Skipf", "SkipNow":
				default:
					return true
				}
				if len(call.Args) > 0 {
					if lit, ok := call.Args[0].(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"need: `) {
						return true
					}
				}
				t.Errorf("%s: a skip that doesn't say \"need: …\" looks like a pass", set.Position(call.Pos()))
				return true
			})
		}
	}
}

func TestChangelogShape(t *testing.T) {
	version := regexp.MustCompile(`^## \[(Unreleased|\d+\.\d+\.\d+)\](?: - \d{4}-\d{2}-\d{2})?$`)
	kinds := []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
	lines := strings.Split(read(t, "CHANGELOG.md"), "\n")
	if lines[0] != "# Changelog" {
		t.Errorf("first line %q, want %q", lines[0], "# Changelog")
	}
	versions := 0
	for n, line := range lines {
		switch {
		case strings.HasPrefix(line, "### "):
			if !slices.Contains(kinds, strings.TrimPrefix(line, "### ")) {
				t.Errorf("CHANGELOG.md:%d: %q, want one of %v", n+1, line, kinds)
			}
			if versions == 0 {
				t.Errorf("CHANGELOG.md:%d: %q belongs to no version", n+1, line)
			}
		case strings.HasPrefix(line, "## "):
			versions++
			m := version.FindStringSubmatch(line)
			if m == nil || (m[1] != "Unreleased") != strings.Contains(line, " - ") {
				t.Errorf("CHANGELOG.md:%d: %q, want \"## [Unreleased]\" or \"## [1.2.3] - 2006-01-02\"", n+1, line)
			}
		}
	}
	if versions == 0 {
		t.Error("CHANGELOG.md: no version")
	}
}

func TestReadmeHasTheCommands(t *testing.T) {
	readme := read(t, "README.md")
	for _, command := range []string{"make run", "agentrun exec --ring 3 -- agent.py"} {
		if !strings.Contains(readme, command) {
			t.Errorf("README.md doesn't show %q, what a newcomer types first", command)
		}
	}
}

func TestMakeTargets(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, target := range []string{"run", "build", "test", "test-vm", "bench", "lint", "fuzz", "install", "clean", "help"} {
		if !regexp.MustCompile(`(?m)^` + target + `:.*## \S`).MatchString(makefile) {
			t.Errorf("Makefile: no target %q with a description", target)
		}
	}
}

// Packages come from wherever the machine's own clients are set up to fetch them: a
// host written into a file would go around that, and stop working elsewhere. What presets let agents read, and the page that says so,
// is fetched by nobody here.
func TestNoPackageHosts(t *testing.T) {
	host := regexp.MustCompile(`(?i)\b(?:deb|snapshot|security|proxy|registry|mirrors?|sum|pypi|ftp)\.(?:[a-z0-9-]+\.)+(?:org|com|net|io|dev)\b`)
	presets := []string{"toolproxy/forward/presets.yaml", "docs/egress.md"}
	for _, name := range files(t, func(name string) bool { return !slices.Contains(presets, name) }) {
		text := read(t, name)
		if !utf8.ValidString(text) {
			continue
		}
		for n, line := range strings.Split(text, "\n") {
			if found := host.FindString(line); found != "" {
				t.Errorf("%s:%d: %s looks like the host of a package registry; read it from the machine's settings", name, n+1, found)
			}
		}
	}
}

// docs/exit-codes.md has a row for each code that package runtime gives, and for the signals.
func TestDocsHaveEveryExitCode(t *testing.T) {
	docs := read(t, "docs/exit-codes.md")
	codes := regexp.MustCompile(`(?m)^\tExit\w+ += (\d+)$`).FindAllStringSubmatch(read(t, "runtime/status.go"), -1)
	if len(codes) < 5 {
		t.Fatalf("got %d codes of runtime/status.go: a check of nothing is no check", len(codes))
	}
	for _, code := range append(codes, []string{"", "128 + n"}) {
		if !strings.Contains(docs, "\n| "+code[1]+" | ") {
			t.Errorf("docs/exit-codes.md: exit code %s has no row", code[1])
		}
	}
	if failed := "const Failed = 125\n"; !strings.Contains(read(t, "internal/ending/ending.go"), failed) || !slices.ContainsFunc(codes, func(c []string) bool { return c[0] == "\tExitFailed        = 125" }) {
		t.Errorf("internal/ending and runtime differ in what a failure's exit code is")
	}
}

func TestDocsLinksResolve(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	for _, name := range files(t, ending(".md")) {
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			if _, err := os.Stat(path.Join(path.Dir(name), target)); err != nil {
				t.Errorf("%s: link to %s: %v", name, target, err)
			}
		}
	}
}
