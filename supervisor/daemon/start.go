// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/daemon/queue"
	"agentrun/supervisor/sandboxes"
)

// startRequest is a run that an operator wants over the control API (M-23). It means what the same words mean
// to agentrun exec --detach, which reads them too: the two doors can't come to differ.
type startRequest struct {
	Command []string `json:"command" read:"required"` // and its arguments
	// Options are the flags of agentrun exec by their names, as ring, memory, ro-bind: texts, numbers, true
	// or false, and lists of texts for those that may be given more than once.
	Options map[string]json.RawMessage `json:"options"`
	Dir     string                     `json:"dir"`     // that relative paths start from; absolute; empty: /
	Environ []string                   `json:"environ"` // NAME=VALUE; the caller's, which env-pass and secrets are taken from
}

// maxStarts wait for room at once. Each holds a connection, and a kill needs one.
const maxStarts = 32

// settled are the flags that the API has decided, or that say something of a terminal there isn't.
var settled = []string{"d", "detach", "i", "interactive", "t", "json", "no-daemon", "help", "h"}

func badRequest(field, format string, args ...any) error {
	return &control.Error{Status: 400, Code: control.CodeBadRequest, Message: field + ": " + fmt.Sprintf(format, args...)}
}

func checkEnviron(environ []string) error {
	for _, v := range environ {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return badRequest("environ", "want NAME=VALUE each")
		}
	}
	return nil
}

// commandLine is that of another agentrun on this node.
func commandLine(n *supervisor.Node, words ...string) []string {
	return slices.Concat([]string{"agentrun"}, n.Flags(), words)
}

// words are the command line that a request stands for, of a verb and its own flags. said is a flag that is set, too.
func (q startRequest) words(n *supervisor.Node, said string, verb ...string) ([]string, error) {
	if q.Dir != "" && !filepath.IsAbs(q.Dir) {
		return nil, badRequest("dir", "want an absolute path")
	}
	if err := checkEnviron(q.Environ); err != nil {
		return nil, err
	}
	args := commandLine(n, verb...)
	for _, name := range slices.Sorted(maps.Keys(q.Options)) {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz-") != "" || name[0] == '-' || name == said || slices.Contains(settled, name) {
			return nil, badRequest("options", "%.40q is none of the flags of agentrun %s that may stand here", name, verb[0])
		}
		values, err := texts(q.Options[name])
		if err != nil {
			return nil, badRequest("options."+name, "%v", err)
		}
		for _, v := range values {
			args = append(args, "--"+name+"="+v)
		}
	}
	return append(append(args, "--"), q.Command...), nil
}

// caller is who has the environment and the folder that the request says.
func (q startRequest) caller(stdout, stderr io.Writer) *supervisor.Caller {
	return &supervisor.Caller{
		Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr, Environ: q.Environ, Dir: cmp.Or(q.Dir, "/"),
	}
}

// real is a folder without links, as a Caller's is; one that isn't there is refused by who needs it.
func real(dir string) string {
	if at, err := filepath.EvalSymlinks(dir); err == nil && dir != "" {
		return at
	}
	return dir
}

// texts are the values of an option, as they would stand on a command line.
func texts(raw json.RawMessage) ([]string, error) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("not JSON")
	}
	switch v := v.(type) {
	case string:
		return []string{v}, nil
	case json.Number:
		return []string{v.String()}, nil
	case bool:
		return []string{fmt.Sprint(v)}, nil
	case []any:
		var list []string
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, errors.New("want a list of texts")
			}
			list = append(list, s)
		}
		return list, nil
	}
	return nil, errors.New("want a text, a number, true or false, or a list of texts")
}

// starter is the operator's side of a run that was asked for over the API.
type starter struct {
	signals chan os.Signal
	lives   chan struct{} // closed when the run lives
	out     bytes.Buffer  // which run it is; whole before lives is closed
	stderr  divert
}

func (s *starter) heard() <-chan os.Signal { return s.signals }
func (s *starter) answer(int)              {} // a run whose launch failed: start sees it end
func (s *starter) letGo(log *os.File)      { s.stderr.turn(log); close(s.lives) }

// start begins a detached run and answers when its agent has been executed. The run doesn't depend on who
// asked: it ends as one does whose exec --detach was handed over.
func (d *Daemon) start(_ context.Context, r control.Request) (any, error) {
	var q startRequest
	if err := r.Read(&q); err != nil {
		return nil, err
	}
	if len(q.Command) == 0 {
		return nil, badRequest("command", "want a list of texts, the program first")
	}
	args, err := q.words(d.node, "", "exec", "--detach", "--json")
	if err != nil {
		return nil, err
	}
	q.Dir = real(q.Dir)
	return d.launch(q, args)
}

// launch carries out the command line of an exec for whoever asked for it.
func (d *Daemon) launch(q startRequest, args []string) (_ any, err error) {
	said := &bytes.Buffer{}
	s := &starter{signals: make(chan os.Signal, 16), lives: make(chan struct{}), stderr: divert{to: said}}
	by := q.caller(&s.out, &s.stderr)
	over := make(chan error, 1)
	if !d.begin(func(ctx context.Context) { over <- d.carry(ctx, by, s, args) }) {
		return nil, &control.Error{Status: 503, Code: control.CodeBusy, Message: "the daemon is ending, or too many starts are under way"}
	}
	defer d.started()
	select {
	case <-s.lives:
	case err = <-over:
		select {
		case <-s.lives: // and has ended already
		default:
			return nil, startRefusal(err, said.String())
		}
	}
	return json.RawMessage(bytes.TrimSpace(s.out.Bytes())), nil
}

// carry takes a run from its words to its end. The node is the daemon's own, by the configuration of now, whatever one the caller's
// environment would lead to.
func (d *Daemon) carry(ctx context.Context, by *supervisor.Caller, s *starter, args []string) error {
	asked := d.opt.Read(ctx, by, args)
	if asked.Request == nil {
		return errUnread
	}
	node, err := d.current()
	if err != nil {
		return err
	}
	defer d.track(s.signals)()
	_, err = supervisor.Run(ctx, node, by, &served{d: d, cl: s}, asked.Request)
	if err == nil {
		err = errNotLaunched
	}
	return err
}

var (
	errUnread      = errors.New("the words can't be read")
	errNotLaunched = errors.New("the launch failed")
)

// startRefusal says why nothing runs. What stands on the caller's stderr is for people, and is the message
// where it is all there is.
func startRefusal(err error, said string) error {
	text, hint, _ := strings.Cut(strings.TrimSpace(said), "\nhint: ")
	text = strings.TrimPrefix(text, "agentrun: ")
	e := &control.Error{Status: 400, Code: control.CodeBadRequest, Message: err.Error(), Hint: supervisor.Hint(err)}
	switch {
	case errors.Is(err, errUnread):
		e.Message, e.Hint = text, hint
	case errors.Is(err, errNotLaunched):
		e.Status, e.Code, e.Message, e.Hint = 500, control.CodeInternal, text, hint
	}
	if denied, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		e.Status, e.Code = 403, string(denied.Code)
	}
	if _, ok := errors.AsType[queue.Refusal](err); ok {
		e.Status, e.Code = 503, control.CodeBusy
	}
	if errors.Is(err, sandboxes.ErrNone) || errors.Is(err, sandboxes.ErrNoSnapshot) {
		e.Status, e.Code = 404, control.CodeNotFound
	}
	_, missing := errors.AsType[*runtime.MissingError](err)
	for _, is := range []error{sandboxes.ErrBusy, sandboxes.ErrExists, sandboxes.ErrSnapshotExists, sandboxes.ErrTooMany} {
		missing = missing || errors.Is(err, is)
	}
	if missing {
		e.Status, e.Code = 409, control.CodeConflict
	}
	return e
}

// letStart says in which context runs that are asked for over the API may begin.
func (d *Daemon) letStart(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serving = ctx
}

// letNone has none begin any more.
func (d *Daemon) letNone() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serving = nil
}

// begin gives a run its goroutine, for which the drain waits.
func (d *Daemon) begin(run func(context.Context)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.serving == nil || d.starts >= maxStarts {
		return false
	}
	d.starts++
	ctx := d.serving
	d.callers.Go(func() { run(ctx) })
	return true
}

// started gives back what begin counted.
func (d *Daemon) started() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.starts--
}
