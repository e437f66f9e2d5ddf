// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"agentrun/test/exit"
)

// asker asks the tool gateway for what a remote policy decides about, beside the watcher, and says what came of it.
const asker = `
import http.client, json, os, sys, threading, time
def post(what, path, body):
    t, answer = time.time(), {}
    try:
        c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=60)
        c.request("POST", "/internal" + path, json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(c.getresponse().read())
        c.close()
    except (OSError, ValueError, http.client.HTTPException) as e: answer = {"error": type(e).__name__}
    e = answer.get("error") or {}
    code = "yes" if answer.get("ok") is True else e.get("code", "none") if isinstance(e, dict) else e
    sys.stdout.write("%s %.6f %.6f %s\n" % (what, t, time.time(), code)); sys.stdout.flush()
def ask():
    n = 0
    while True:
        n += 1
        if n % 4: post("call", "/tools/math", {"args": {"expression": "6*7"}})
        elif os.environ["ASK"] == "elevation": post("elevation", "/elevation", {"target_ring": 2, "ttl_seconds": 1, "reason": "soak", "wait_seconds": 0})
        time.sleep(0.4)
def begin(): threading.Thread(target=ask, daemon=True).start()
`

// request is what the asker asked, and when.
type request struct {
	what, code string
	from, to   time.Time
}

func (q request) yes() bool { return q.code == "yes" }

// policyPoint is a remote policy decision point that comes and goes.
type policyPoint struct {
	exittest.PDP
	at       string
	settings string // a gateway.yaml that names it
	server   *http.Server
	up, down spells
}

func startPolicyPoint(t *testing.T) *policyPoint {
	t.Helper()
	p := &policyPoint{at: "127.0.23.1:0"} // an address of its own: while it is gone nobody else is given its port
	p.Runs = true
	if err := p.mend(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.server.Close() })
	s := settings{}
	s.remotePDP("http://" + p.at)
	b, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	p.settings = write(t, filepath.Join(t.TempDir(), "gateway.yaml"), string(b), 0o600)
	return p
}

// fail takes it away: gone, so that nobody listens, or by a mood.
func (p *policyPoint) fail(mood string) error {
	var err error
	if mood == "gone" {
		err = p.server.Close()
	}
	p.Be(mood)
	p.up.end()
	p.down.begin()
	return err
}

// mend has it say yes to everything.
func (p *policyPoint) mend() error {
	if p.server != nil {
		_ = p.server.Close()
		p.down.end()
	}
	p.up.begin()
	p.Be("allow")
	l, err := net.Listen("tcp", p.at)
	// A child of ours that is between fork and exec has the closed one, too.
	for give := time.Now().Add(hang()); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(give); l, err = net.Listen("tcp", p.at) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	p.at = l.Addr().String()
	p.server = &http.Server{Handler: &p.PDP, ReadHeaderTimeout: 10 * time.Second}
	go func(s *http.Server) { _ = s.Serve(l) }(p.server)
	return nil
}

// within tells whether a request was asked and answered in an outage.
func (p *policyPoint) within(q request) bool { return !p.up.meet(q.from, q.to) }

// keepLent reads what an agent was lent because it asked. The record comes before the loan; the answer may never come, if the agent or
// its gateway had to wait for too long.
func (s *soak) keepLent(e entry, at time.Time) {
	if e.Kind != "elevation" || e.Data["granted"] != true || e.Data["by"] != "agent" {
		return
	}
	until, err := time.Parse(time.RFC3339Nano, toText(e.Data["expires_at"]))
	if err != nil {
		s.t.Errorf("elevation on record: %v", err)
	}
	id := toText(e.Data["agent_id"])
	s.lent[id] = append(s.lent[id], window{at, until})
}

// checkAsked compares what a policy has allowed with when there was one, and has the elevations among it count as windows.
func (a *soaked) checkAsked() {
	p, s := a.soak.policy, a.soak
	for _, q := range a.asked {
		s.count(q.what + " " + q.code)
		if q.yes() && p.within(q) {
			s.t.Errorf("%s: %s between %v and %v, when nobody decided that it may", a.id, q.what, q.from, q.to)
		}
		for _, w := range s.lent[a.id] {
			if q.what == "elevation" && w.meets(q.from, q.to) && !w.from.Before(q.from) && p.within(request{from: q.from, to: w.from}) {
				s.t.Errorf("%s: lent at %v, asked for at %v, when nobody decided that it may", a.id, w.from, q.from)
			}
		}
	}
	for _, w := range s.lent[a.id] {
		for _, l := range a.lowered {
			if !l.from.Before(w.from) && l.to.Before(w.to) { // of a verb that had begun before, the order isn't known
				w.to = l.to
			}
		}
		a.windows = append(a.windows, w)
	}
}
