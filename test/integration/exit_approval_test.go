// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/test/exit"
)

// waiting polls until exactly n calls wait.
func (x *exit) waiting(n int) []pending {
	x.t.Helper()
	var all []pending
	eventually(x.t, 20*time.Second, fmt.Sprintf("%d calls that wait for approval", n), func() bool {
		r := x.approvals(x.t, "list", "--json")
		var err error
		all, err = pendingOf(r.stdout)
		return r.exit == 0 && err == nil && len(all) == n
	})
	if len(all) != n {
		x.t.Fatalf("waiting: %+v", all)
	}
	return all
}

// askTwice calls the tool of category D twice with the same arguments, one after the other.
const askTwice = `
import json, os, sys, urllib.error, urllib.request
print("ready", flush=True)
for i in range(int(sys.argv[1])):
    q = urllib.request.Request(os.environ["AGENTRUN_TOOLS_URL"] + "/webhook", b'{"args":{"text":"pay"}}', {"Content-Type": "application/json"})
    try: print(urllib.request.urlopen(q, timeout=60).read().decode(), flush=True)
    except urllib.error.HTTPError as e: print(e.read().decode(), flush=True)`

// M-11: a tool of category D waits for an operator; the answer holds for that call alone.
func TestM11Approval(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, tt := range []struct {
		name     string
		answer   []string // of the operator; empty: none
		ok       bool
		reaches  int
		approver string
	}{
		{"approve", []string{"approve"}, true, 1, ""},
		{"deny", []string{"deny"}, false, 0, ""},
		{"nobody answers", nil, false, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newExit(t)
			api := x.host("api.test", exittest.Site())
			tool := x.httpTool("https://api.test/echo", "D")
			if tt.answer == nil {
				tool["approval_wait"] = "5s" // an answer after this comes too late
			}
			x.settings.tool("webhook", tool)
			x.file("ask.py", askTwice)
			c := x.prepare(x.opts("ring3"), "python3", "ask.py", "1")
			c.startUntil(t, "ready")
			p := x.waiting(1)[0]
			if p.Tool != "webhook" || !strings.Contains(string(p.Args), "pay") {
				t.Errorf("the operator sees %+v", p)
			}
			if n := len(api.Visits()); n != 0 {
				t.Errorf("the upstream was called %d times before the answer", n)
			}
			if tt.answer != nil {
				if r := x.approvals(t, with(tt.answer, p.ID)...); r.exit != 0 {
					t.Errorf("approvals %v: exit %d\n%s%s", tt.answer, r.exit, r.stdout, r.stderr)
				}
			}
			r := c.finish(t)
			if got := strings.Contains(r.stdout, `"ok":true`); got != tt.ok || !tt.ok && !strings.Contains(r.stdout, "approval_required") {
				t.Errorf("got %q, want success: %v", r.stdout, tt.ok)
			}
			if n := len(api.Visits()); n != tt.reaches {
				t.Errorf("the upstream was called %d times, want %d", n, tt.reaches)
			}
			// An answer given late, or again, is for nothing.
			if again := x.approvals(t, "approve", p.ID); again.exit == 0 {
				t.Errorf("an answer to a call that is over was taken: %s", again.stdout)
			}
			if n := len(calls(x.n.audit("node"), "tool")); n != 1 {
				t.Errorf("%d records of one call", n)
			}
		})
	}
}

// THREATS "replayed approvals": the same call once more has to be asked for once more.
func TestM11ApprovalIsForOneCall(t *testing.T) {
	x := newExit(t)
	api := x.host("api.test", exittest.Site())
	x.settings.tool("webhook", x.httpTool("https://api.test/echo", "D"))
	x.file("ask.py", askTwice)
	c := x.prepare(x.opts("ring3"), "python3", "ask.py", "2")
	c.startUntil(t, "ready")
	first := x.waiting(1)[0]
	if r := x.approvals(t, "approve", first.ID); r.exit != 0 {
		t.Fatalf("exit %d\n%s", r.exit, r.stderr)
	}
	eventually(t, 20*time.Second, "the second call", func() bool { return len(api.Visits()) == 1 })
	second := x.waiting(1)[0]
	if second.ID == first.ID {
		t.Errorf("both calls have the id %s", first.ID)
	}
	if r := x.approvals(t, "approve", first.ID); r.exit == 0 {
		t.Error("the first approval was taken again")
	}
	if n := len(api.Visits()); n != 1 {
		t.Errorf("the upstream was called %d times, want once", n)
	}
	if r := x.approvals(t, "deny", second.ID); r.exit != 0 {
		t.Errorf("exit %d\n%s", r.exit, r.stderr)
	}
	c.finish(t).want(t, 0, "exited")
}

// M-5, M-11: a run that ends takes its questions along.
func TestM11RunEndsWhileItWaits(t *testing.T) {
	x := newExit(t)
	x.host("api.test", exittest.Site())
	x.settings.tool("webhook", x.httpTool("https://api.test/echo", "D"))
	x.file("ask.py", askTwice)
	c := x.prepare(x.opts("ring3"), "python3", "ask.py", "1")
	c.startUntil(t, "ready")
	x.waiting(1)
	c.Process.Kill()
	c.Wait()
	noAgents(t)
	x.waiting(0)
}

// M-18: a call that was under way when the gateway was killed is on record, as one that the run's end cut off.
func TestM18CallOfAKilledGatewayIsOnRecord(t *testing.T) {
	x := newExit(t)
	x.host("api.test", exittest.Site())
	x.settings.tool("webhook", x.httpTool("https://api.test/echo", "D"))
	x.file("ask.py", askTwice)
	c := x.prepare(x.opts("ring3"), "python3", "ask.py", "1")
	c.startUntil(t, "ready")
	x.waiting(1)
	if err := unix.Kill(gatewayOf(t).pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.finish(t)
	var calls []string
	for _, e := range x.n.audit("node") {
		if e.Kind == "tool_call" {
			calls = append(calls, fmt.Sprint(e.Data["name"], " ", e.Data["code"], " ", e.Data["allowed"]))
		}
	}
	if want := []string{"webhook run_ended false"}; !slices.Equal(calls, want) {
		t.Errorf("got calls %q on record, want %q", calls, want)
	}
}
