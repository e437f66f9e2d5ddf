// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor/live"
)

// fakeHost writes down what it is asked for, and has no room where it is full.
type fakeHost struct {
	calls  []string
	full   error
	caught atomic.Bool // signals
}

func (h *fakeHost) did(call string) { h.calls = append(h.calls, call) }

func (h *fakeHost) Outlives() bool { return false }
func (h *fakeHost) Ahead() *Ahead  { return nil }

func (h *fakeHost) Admit(context.Context, int64, live.Coming) error {
	h.did("admit")
	return h.full
}

func (h *fakeHost) Take(*runtime.Plan) { h.did("take") }

func (h *fakeHost) Begin(*hypervisor.Hypervisor, hypervisor.Admission, *runtime.Plan, live.RunOptions) (*live.Run, func(), error) {
	h.did("begin")
	return nil, nil, errors.New("no run begins here")
}

func (h *fakeHost) Collect(context.Context)   {} // beside the rest, in no order
func (h *fakeHost) Signals() <-chan os.Signal { h.caught.Store(true); return nil }
func (h *fakeHost) Started()                  { h.did("started") }
func (h *fakeHost) LetGo(*os.File) error      { return nil }
func (h *fakeHost) Answer(int)                { h.did("answer") }
func (h *fakeHost) Cool()                     { h.did("cool") }
func (h *fakeHost) Close()                    { h.did("close") }

// A request that is refused takes no more of its host than it had come to, gives that back in reverse, and is
// told where its account was asked for.
func TestRefusedRuns(t *testing.T) {
	full := errors.New("the node is full")
	for _, tt := range []struct {
		name  string
		full  error
		r     Request
		err   string
		calls []string
	}{
		{"a request that makes no sense waits for no room", full, Request{Ring: new(0)}, "--ring 0", nil},
		{"no room", full, Request{Command: []string{"x"}, NoGateway: true}, full.Error(), []string{"admit", "close"}},
		{"no command", nil, Request{NoGateway: true}, "command", nil},
		{"a command that is not there", nil, Request{Command: []string{"/nonexistent/x"}, NoGateway: true}, "", []string{"admit", "close"}},
		{"a folder for what is kept that is not there", nil, Request{Command: []string{"x"}, Ring: new(1), NoGateway: true, Keep: "/nonexistent/k"}, "--keep",
			[]string{"admit", "close"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told bytes.Buffer
			tt.r.JSON, tt.r.StatusFile = true, filepath.Join(t.TempDir(), "status.json")
			host := &fakeHost{full: tt.full}
			n := testNode(t)
			_, err := Run(t.Context(), n, &Caller{Stdout: io.Discard, Stderr: &told, Dir: "/"}, host, &tt.r)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if d := cmp.Diff(tt.calls, host.calls); d != "" {
				t.Errorf("what the host was asked for (-want +got)\n%s", d)
			}
			var status runtime.Status
			b, rerr := os.ReadFile(tt.r.StatusFile)
			if rerr != nil || json.Unmarshal(b, &status) != nil || status.State != runtime.Failed || status.Error != err.Error() || status.ExitCode != exitCode(err) {
				t.Errorf("status file: %v, %s", rerr, b)
			}
			if !strings.Contains(told.String(), `"state":"failed"`) {
				t.Errorf("--json told %s", told.String())
			}
			if _, err := os.Stat(n.StateDir); err == nil {
				t.Error("a run that was refused has left a state folder")
			}
		})
	}
}

// A status file that can't be written is the reason, once.
func TestStatusFileThatCantBeWritten(t *testing.T) {
	host := &fakeHost{}
	r := &Request{Command: []string{"x"}, NoGateway: true, StatusFile: "/nonexistent/status.json"}
	_, err := Run(t.Context(), testNode(t), &Caller{Stdout: io.Discard, Stderr: io.Discard, Dir: "/"}, host, r)
	if err == nil || strings.Count(err.Error(), "--status-file") != 1 {
		t.Errorf("got %v", err)
	}
	if slices.Contains(host.calls, "take") {
		t.Errorf("the host was asked for %v", host.calls)
	}
}

// A home that is counted or an image that is looked at may take long: whoever presses Ctrl-C then ends it, as nobody hears of a signal
// that is caught before the launch.
func TestSignalsEndWhatComesBeforeThePlan(t *testing.T) {
	host := &fakeHost{}
	s := newRun(t.Context(), testNode(t), &Caller{Stdout: io.Discard, Stderr: io.Discard, Dir: "/"}, host, &Request{Command: []string{"/bin/true"}, NoGateway: true})
	defer s.end(nil)
	plan := slices.IndexFunc(steps, func(st step) bool { return st.name == "plan" })
	reached := errors.New("reached")
	last := step{name: "last", do: func(*run) error {
		s.beside.Wait()
		for range 1000 { // whatever was begun beside has had its turn
			goruntime.Gosched()
		}
		if host.caught.Load() {
			t.Error("signals are caught before the plan")
		}
		return reached
	}}
	if err := s.through(append(slices.Clone(steps[:plan]), last)); !errors.Is(err, reached) {
		t.Fatal(err)
	}
}

// Whatever step fails, those begun are undone in reverse, the failed one first, and nothing after it is done.
func TestStepsAreUndoneInReverse(t *testing.T) {
	broken := errors.New("broken")
	for at, want := range []string{"do 0, undo 0", "do 0, do 1, undo 1, undo 0", "do 0, do 1, do 2, undo 1, undo 0", "do 0, do 1, do 2, do 3, undo 3, undo 1, undo 0"} {
		var did []string
		var list []step
		for i := range 4 {
			n := string(rune('0' + i))
			st := step{name: n, do: func(*run) error {
				did = append(did, "do "+n)
				if i == at {
					return broken
				}
				return nil
			}}
			if i != 2 { // has nothing to undo
				st.undo = func(*run) { did = append(did, "undo "+n) }
			}
			list = append(list, st)
		}
		s := newRun(t.Context(), testNode(t), &Caller{}, &fakeHost{}, &Request{})
		if err := s.through(list); !errors.Is(err, broken) {
			t.Errorf("step %d: got %v", at, err)
		}
		s.end(nil)
		if got := strings.Join(did, ", "); got != want {
			t.Errorf("step %d fails: got %s, want %s", at, got, want)
		}
	}
}

// The order is that of privilege: nothing waits for a request that makes no sense, nothing is built for one
// that waits, and what must outlive something stands before it.
func TestOrderOfSteps(t *testing.T) {
	page, err := os.ReadFile("../docs/how-a-run-works.md")
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, st := range steps {
		if row := fmt.Sprintf("\n| %d | %s |", i+1, st.name); !strings.Contains(string(page), row) {
			t.Errorf("docs/how-a-run-works.md has no row%s", row)
		}
		if st.name == "" || st.why == "" || st.do == nil || at[st.name] != 0 {
			t.Errorf("step %d, %q: want a name of its own, a reason and something to do", i, st.name)
		}
		at[st.name] = i + 1
	}
	for _, tt := range []struct{ first, then, why string }{
		{"node", "spec", "the ring of an agent is in the state"},
		{"spec", "place", "who waits in the queue must have a reason"},
		{"place", "files", "a run that waits holds no descriptor"},
		{"files", "launch", "an agent could put a link where the status file goes"},
		{"plan", "admission", "what is on record is what was planned"},
		{"sandbox", "admission", "the turn in a session is not held while a sandbox is looked for"},
		{"admission", "operators", "an operator's list has no run that isn't on record"},
		{"operators", "way out", "the account of calls is closed before what may end the run"},
		{"policy", "launch", "the gateway refuses too late for a run"},
		{"launch", "account", "it is told when it can't change any more"},
	} {
		if at[tt.first] == 0 || at[tt.then] == 0 || at[tt.first] > at[tt.then] {
			t.Errorf("%s must come before %s: %s", tt.first, tt.then, tt.why)
		}
	}
}
