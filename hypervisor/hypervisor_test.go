// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/internal/mounts"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/sagas"
	"agentrun/store"
	"agentrun/toolproxy/link"
	"agentrun/witness"
)

// node is a hypervisor on a state folder of its own, with a clock that stands still.
type node struct {
	*Hypervisor
	t   *testing.T
	dir string
	now time.Time
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "state"), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	n.restart()
	t.Cleanup(func() { n.Close() })
	return n
}

// restart is what another process sees.
func (n *node) restart() {
	n.t.Helper()
	if n.Hypervisor != nil {
		if err := n.Close(); err != nil {
			n.t.Fatal(err)
		}
	}
	h, err := Open(Options{StateDir: n.dir, Now: func() time.Time { return n.now }})
	if err != nil {
		n.t.Fatal(err)
	}
	n.Hypervisor = h
}

// score sets one, which must work.
func (n *node) score(id string, score float64, consensus bool) {
	n.t.Helper()
	if _, _, err := n.SetScore(n.t.Context(), id, score, consensus, "uid:0"); err != nil {
		n.t.Fatal(err)
	}
}

// log are the kinds in a chain, which must verify.
func (n *node) log(chain string) []string {
	n.t.Helper()
	n.restart() // closes and so syncs
	rep, err := audit.Verify(filepath.Join(n.dir, auditDir), chain, audit.VerifyOptions{})
	if err != nil || rep.Problem != nil {
		n.t.Fatalf("chain %s: %v %v", chain, rep.Problem, err)
	}
	r, err := audit.OpenReader(filepath.Join(n.dir, auditDir), chain)
	if err != nil {
		n.t.Fatal(err)
	}
	defer r.Close()
	var kinds []string
	for {
		l, err := r.Next()
		if err != nil {
			return kinds
		}
		if l.Entry.Kind != "key" { // of the first checkpoint
			kinds = append(kinds, string(l.Entry.Kind))
		}
	}
}

// breakAudit makes the log impossible to write.
func (n *node) breakAudit() {
	n.t.Helper()
	n.restart()
	dir := filepath.Join(n.dir, auditDir)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(n.dir, 0o700), os.WriteFile(dir, nil, 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) agent(id string) Agent {
	n.t.Helper()
	a, err := n.Agent(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

// code is the code of a denial, "" for none.
func code(t *testing.T, err error) rings.Code {
	t.Helper()
	if err == nil {
		return ""
	}
	d, ok := errors.AsType[*DeniedError](err)
	if !ok {
		t.Fatalf("got %v, want a decision", err)
	}
	if d.Allowed() || d.Hint == "" || d.Rule == "" || d.Reason == "" {
		t.Errorf("denial without its grounds: %+v", d)
	}
	return d.Code
}

func TestH1UnknownAgentIsSandboxed(t *testing.T) {
	n := newNode(t)
	if a := n.agent("nobody"); a.Ring != rings.Sandbox || a.Score != nil || a.Quarantined != nil {
		t.Errorf("got %+v", a)
	}
}

func TestH2ScoreDecidesTheRing(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		score     float64
		consensus bool
		want      rings.Ring
	}{{0.6, true, rings.Sandbox}, {0.61, false, rings.Standard}, {0.99, false, rings.Standard}, {0.96, true, rings.Privileged}, {0, false, rings.Sandbox}} {
		n.score("a", tt.score, tt.consensus)
		n.restart()
		if a := n.agent("a"); a.Ring != tt.want || *a.Score != tt.score || a.Consensus != tt.consensus {
			t.Errorf("score %v: got %+v, want %v", tt.score, a, tt.want)
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), -0.1, 1.1} {
		if _, _, err := n.SetScore(t.Context(), "a", bad, true, "uid:0"); !errors.Is(err, rings.ErrScore) {
			t.Errorf("score %v: got %v", bad, err)
		}
	}
	if d := cmp.Diff([]string{"score", "score", "score", "score", "score"}, n.log("node")); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
}

// H-28: without the record nobody rises, and everybody can fall.
func TestH28WithoutAuditNothingIsGranted(t *testing.T) {
	n := newNode(t)
	n.score("falls", 0.99, true)
	n.breakAudit()
	if _, _, err := n.SetScore(t.Context(), "rises", 0.7, false, "uid:0"); err == nil {
		t.Error("a score rose without a record")
	}
	if a := n.agent("rises"); a.Ring != rings.Sandbox {
		t.Errorf("got %+v", a)
	}
	if _, _, err := n.SetScore(t.Context(), "falls", 0.1, false, "uid:0"); err == nil {
		t.Error("an unwritten record is not reported")
	}
	if a := n.agent("falls"); a.Ring != rings.Sandbox {
		t.Errorf("a fall waited for its record: %+v", a)
	}
	if _, err := n.Quarantine(t.Context(), "falls", Cause{Code: "operator", Reason: "seen"}); err == nil {
		t.Error("an unwritten quarantine is not reported")
	}
	if a := n.agent("falls"); a.Quarantined == nil {
		t.Error("a quarantine waited for its record")
	}
	if _, err := n.Admit(t.Context(), Request{Agent: "rises"}); err == nil {
		t.Error("a run was admitted without a record")
	}
	if _, err := n.CreateSession(t.Context(), session("s", rings.Eventual)); err == nil {
		t.Error("a session was made without a record")
	}
	w := n.Control(Admission{Ring: rings.Sandbox}, ControlOptions{Run: "r"}).Watch(WatchOptions{})
	if err := w.Start(status("r")); err == nil {
		t.Error("a run started without a record")
	}
	if err := w.Refused(runtime.Refusal{At: n.now, Syscall: "mount", Called: rings.Root, Verdict: "EPERM"}); err == nil {
		t.Error("a run went on without a record")
	}
}

func session(id string, mode rings.ConsistencyMode) rings.SessionConfig {
	return rings.SessionConfig{SessionID: id, MaxParticipants: 2, MinParticipants: 1, ConsistencyMode: mode}
}

func status(id string) runtime.Status {
	return runtime.Status{ID: id, Ring: 3, Profile: "ring3", PlanDigest: strings.Repeat("ab", 32), State: runtime.Exited}
}

func TestH9AdmitAsksTheEnforcer(t *testing.T) {
	n := newNode(t)
	n.score("low", 0.1, true)
	n.score("mid", 0.7, false)
	n.score("high", 0.97, true)
	for _, tt := range []struct {
		agent string
		ring  rings.Ring
		want  rings.Ring // NoRing: denied
		code  rings.Code
	}{
		{"", rings.NoRing, rings.Sandbox, ""},
		{"", rings.Privileged, rings.Privileged, ""}, // the operator's own
		{"nobody", rings.NoRing, rings.Sandbox, ""},
		{"nobody", rings.Standard, rings.NoRing, rings.CodeInsufficientRing},
		{"low", rings.NoRing, rings.Sandbox, ""},
		{"low", rings.Standard, rings.NoRing, rings.CodeInsufficientRing},
		{"mid", rings.NoRing, rings.Standard, ""},
		{"mid", rings.Sandbox, rings.Sandbox, ""},
		{"mid", rings.Privileged, rings.NoRing, rings.CodeInsufficientRing},
		{"mid", rings.Root, rings.NoRing, rings.CodeRing0Forbidden},
		{"high", rings.NoRing, rings.Privileged, ""},
		{"high", rings.Standard, rings.Standard, ""},
		{"high", rings.Root, rings.NoRing, rings.CodeRing0Forbidden},
	} {
		req := Request{Agent: tt.agent, Ring: tt.ring}
		looked, lerr := n.RingFor(t.Context(), req)
		adm, err := n.Admit(t.Context(), req)
		if got := code(t, err); got != tt.code || adm.Ring != tt.want {
			t.Errorf("%q in %v: got %v, code %q, want %v, %q", tt.agent, tt.ring, adm.Ring, got, tt.want, tt.code)
		}
		if (lerr == nil) != (err == nil) || err == nil && looked != adm.Ring {
			t.Errorf("%q in %v: RingFor says %v, %v, Admit %v, %v", tt.agent, tt.ring, looked, lerr, adm.Ring, err)
		}
	}
}

// H-10, H-27: what is missing is on record: consensus for one who has the score, a witness for what is nobody's.
func TestH27RingCheckSaysWhatIsMissing(t *testing.T) {
	n := newNode(t)
	n.score("alone", 0.99, false)
	for _, ring := range []rings.Ring{rings.Privileged, rings.Root} {
		if _, err := n.Admit(t.Context(), Request{Agent: "alone", Ring: ring}); err == nil {
			t.Errorf("admitted in %v", ring)
		}
	}
	n.restart()
	r, err := audit.OpenReader(filepath.Join(n.dir, auditDir), "node")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got [][2]bool
	for {
		l, err := r.Next()
		if err != nil {
			break
		}
		if c, ok := l.Entry.Data.(*audit.RingCheck); ok {
			got = append(got, [2]bool{c.RequiresConsensus, c.RequiresSREWitness})
		}
	}
	if d := cmp.Diff([][2]bool{{true, false}, {false, true}}, got); d != "" {
		t.Errorf("consensus, witness (-want +got):\n%s", d)
	}
}

// signed is an operator with a key, and what he signs.
func signed(t *testing.T, now time.Time, action, subject string) (witness.Keys, string) {
	t.Helper()
	key, err := witness.NewKey("operator")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := witness.ParseKeys([]byte(key.Verifier() + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.Sign(witness.Statement{Action: action, Subject: subject, Nonce: witness.NewNonce(), Expires: now.Add(time.Minute)}, now)
	if err != nil {
		t.Fatal(err)
	}
	return keys, text
}

func TestH31Quarantine(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.99, true)
	e, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "odd calls"})
	if err != nil || e.Reason != "odd calls" {
		t.Fatal(e, err)
	}
	if e, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "again"}); err != nil || e.Reason != "odd calls" {
		t.Errorf("the first entry stays: got %+v, %v", e, err)
	}
	n.restart() // it survives
	if a := n.agent("a"); a.Ring != rings.Sandbox || a.Quarantined == nil {
		t.Errorf("got %+v", a)
	}
	if _, err := n.Admit(t.Context(), Request{Agent: "a"}); code(t, err) != rings.CodeQuarantined {
		t.Errorf("admitted: %v", err)
	}
	// A better score doesn't open the door.
	n.score("a", 1, true)
	if _, err := n.Admit(t.Context(), Request{Agent: "a", Ring: rings.Sandbox}); code(t, err) != rings.CodeQuarantined {
		t.Errorf("admitted: %v", err)
	}
	keys, text := signed(t, n.now, rings.ActionRelease, "agent:a")
	if _, _, err := n.Release(t.Context(), "a", text, witness.Keys{}, "", ""); !errors.Is(err, witness.ErrUnknownKey) {
		t.Errorf("released by nobody's key: %v", err)
	}
	if _, _, err := n.Release(t.Context(), "b", text, keys, "", ""); !errors.Is(err, rings.ErrNotQuarantined) {
		t.Errorf("release of another: %v", err)
	}
	was, operator, err := n.Release(t.Context(), "a", text, keys, "", "")
	if err != nil || was.Reason != "odd calls" || !strings.HasPrefix(operator, "operator+") {
		t.Fatal(was, operator, err)
	}
	n.restart()
	if a := n.agent("a"); a.Ring != rings.Privileged || a.Quarantined != nil {
		t.Errorf("after its release: %+v", a)
	}
	want := []string{"score", "quarantine", "ring_check", "score", "ring_check", "operator", "operator", "release"}
	if d := cmp.Diff(want, n.log("node")); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
}

// H-12: an attestation is good once, also for the same act, after a restart and with the clock set back.
func TestH12AttestationIsGoodOnce(t *testing.T) {
	n := newNode(t)
	hold := func() {
		if _, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "r"}); err != nil {
			t.Fatal(err)
		}
	}
	hold()
	keys, text := signed(t, n.now, rings.ActionRelease, "agent:a")
	_, other := signed(t, n.now, "other-action", "action:a")
	if _, _, err := n.Release(t.Context(), "a", other, keys, "", ""); err == nil {
		t.Error("released by an attestation of something else")
	}
	if _, _, err := n.Release(t.Context(), "a", text, keys, "", ""); err != nil {
		t.Fatal(err)
	}
	hold()
	for _, shift := range []time.Duration{0, -time.Hour, 30 * 24 * time.Hour} {
		n.now = n.now.Add(shift)
		n.restart()
		if _, _, err := n.Release(t.Context(), "a", text, keys, "", ""); err == nil {
			t.Errorf("used twice, clock shifted by %v", shift)
		}
		if n.agent("a").Quarantined == nil {
			t.Fatal("out of quarantine")
		}
	}
}

// If the record of a release can't be written, neither the release nor the nonce has happened.
func TestH28ReleaseNeedsItsRecord(t *testing.T) {
	n := newNode(t)
	if _, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	keys, text := signed(t, n.now, rings.ActionRelease, "agent:a")
	n.breakAudit()
	if _, _, err := n.Release(t.Context(), "a", text, keys, "", ""); err == nil {
		t.Error("released without a record")
	}
	if n.agent("a").Quarantined == nil {
		t.Error("out of quarantine without a record")
	}
	if err := os.Remove(filepath.Join(n.dir, auditDir)); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if _, _, err := n.Release(t.Context(), "a", text, keys, "", ""); err != nil {
		t.Errorf("the attestation was spent on nothing: %v", err)
	}
}

func TestH29SessionLife(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	cfg := rings.SessionConfig{SessionID: "s", MaxParticipants: 2, MinParticipants: 2, ConsistencyMode: rings.Eventual}
	steps := []struct {
		name  string
		do    func() (rings.SessionRecord, error)
		state rings.SessionState
		err   error
	}{
		{"join before it exists", func() (rings.SessionRecord, error) { return n.JoinSession(ctx, "s", "a") }, 0, ErrNoSession},
		{"create", func() (rings.SessionRecord, error) { return n.CreateSession(ctx, cfg) }, rings.SessionCreated, nil},
		{"create again", func() (rings.SessionRecord, error) { return n.CreateSession(ctx, cfg) }, 0, ErrSessionExists},
		{"first", func() (rings.SessionRecord, error) { return n.JoinSession(ctx, "s", "a") }, rings.SessionHandshaking, nil},
		{"twice", func() (rings.SessionRecord, error) { return n.JoinSession(ctx, "s", "a") }, 0, rings.ErrJoined},
		{"second", func() (rings.SessionRecord, error) { return n.JoinSession(ctx, "s", "b") }, rings.SessionActive, nil},
		{"third", func() (rings.SessionRecord, error) { return n.JoinSession(ctx, "s", "c") }, 0, rings.ErrSessionFull},
		{"archive", func() (rings.SessionRecord, error) { return n.ArchiveSession(ctx, "s") }, rings.SessionArchived, nil},
		{"archive again", func() (rings.SessionRecord, error) { return n.ArchiveSession(ctx, "s") }, 0, rings.ErrTransition},
		{"join the dead", func() (rings.SessionRecord, error) { return n.JoinSession(ctx, "s", "d") }, 0, rings.ErrTransition},
		{"create the dead", func() (rings.SessionRecord, error) { return n.CreateSession(ctx, cfg) }, 0, ErrSessionExists},
	}
	for _, s := range steps {
		n.restart()
		rec, err := s.do()
		if !errors.Is(err, s.err) || s.err == nil && err != nil || rec.State != s.state {
			t.Errorf("%s: got %v, %v, want %v, %v", s.name, rec.State, err, s.state, s.err)
		}
	}
	if d := cmp.Diff([]string{"session", "session", "session", "session", "session"}, n.log("session-s")); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
	if _, err := n.JoinSession(ctx, "../s", "a"); err == nil {
		t.Error("a path as a session")
	}
}

func TestH30SessionsAreApart(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	for _, id := range []string{"s-1", "s-10"} {
		if _, err := n.CreateSession(ctx, session(id, rings.Eventual)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.JoinSession(ctx, "s-1", "a"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		req  Request
		want rings.Code
	}{
		{Request{Agent: "a", Session: "s-1"}, ""},
		{Request{Agent: "a", Session: "s-10"}, CodeSessionClosed},
		{Request{Agent: "b", Session: "s-1"}, CodeNotParticipant},
		{Request{Agent: "a", Session: "s-2"}, CodeSessionUnknown},
		{Request{Session: "s-1"}, CodeAgentMissing},
	} {
		if _, err := n.Admit(ctx, tt.req); code(t, err) != tt.want {
			t.Errorf("%+v: got %v, want %q", tt.req, err, tt.want)
		}
	}
	if kinds, _ := os.ReadDir(filepath.Join(n.dir, auditDir)); len(kinds) > 3 {
		t.Errorf("a session that doesn't exist got a chain: %v", kinds)
	}
	own, other := n.Workspace("s-1"), n.Workspace("s-10")
	inside := filepath.Join(own, "deep", "er")
	if err := os.MkdirAll(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	for _, tt := range []struct {
		session, path string
		ok            bool
	}{
		{"s-1", own, true}, {"s-1", inside, true}, {"s-1", other, false}, {"s-1", filepath.Dir(own), false},
		{"s-1", n.dir, false}, {"s-1", filepath.Dir(n.dir), false}, {"s-1", "/", false}, {"s-1", filepath.Join(n.dir, "keys"), false},
		{"s-1", elsewhere, true}, {"", own, false}, {"", n.dir, false}, {"", elsewhere, true}, {"s-2", own, false},
	} {
		if err := n.PathCheck(nil)(tt.session, []string{elsewhere, tt.path}, new(mounts.View)); (err == nil) != tt.ok {
			t.Errorf("session %q, %s: got %v, want allowed %v", tt.session, tt.path, err, tt.ok)
		} else if err != nil && code(t, err) == "" {
			t.Errorf("session %q, %s: no code", tt.session, tt.path)
		}
	}
}

// H-30: a look that was made ahead is the check's if it is of the same folders, and no other's.
func TestH30LookAhead(t *testing.T) {
	n := newNode(t)
	elsewhere, secret := t.TempDir(), filepath.Join(t.TempDir(), "key")
	ahead := n.opt.LookAhead()
	ahead.Look()
	for _, path := range []string{n.dir, filepath.Join(n.dir, "keys"), "/"} {
		if err := n.PathCheck(ahead)("", []string{path}, new(mounts.View)); err == nil {
			t.Errorf("%s may be shown", path)
		}
	}
	if err := n.PathCheck(ahead)("", []string{elsewhere}, new(mounts.View)); err != nil {
		t.Error(err)
	}
	if err := n.PathCheck(ahead, secret)("", []string{filepath.Dir(secret)}, new(mounts.View)); err == nil {
		t.Error("the folder of a key may be shown, which a look ahead knew nothing of")
	}
	broken := errors.New("broken")
	ahead.look = func() (*own, error) { return nil, broken }
	if err := n.PathCheck(ahead)("", []string{elsewhere}, new(mounts.View)); !errors.Is(err, broken) {
		t.Errorf("by a look that failed: %v", err)
	}
	ahead.paths = append(ahead.paths, secret)
	if err := n.PathCheck(ahead)("", []string{elsewhere}, new(mounts.View)); err != nil {
		t.Errorf("by a look at other folders: %v", err)
	}
}

// H-32: in a strong session runs that can write take turns; the lock ends with whoever holds it.
func TestH32StrongSessionTakesTurns(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	n.score("a", 0.7, false)
	for _, mode := range []rings.ConsistencyMode{rings.Strong, rings.Causal} {
		id := string(mode)
		if _, err := n.CreateSession(ctx, session(id, mode)); err != nil {
			t.Fatal(err)
		}
		if _, err := n.JoinSession(ctx, id, "a"); err != nil {
			t.Fatal(err)
		}
		first, err := n.Admit(ctx, Request{Agent: "a", Session: id})
		if err != nil {
			t.Fatal(err)
		}
		second, err := n.Admit(ctx, Request{Agent: "a", Session: id})
		if want := map[rings.ConsistencyMode]rings.Code{rings.Strong: CodeSessionBusy}[mode]; code(t, err) != want {
			t.Errorf("%s: a second writer: %v", mode, err)
		}
		second.Done()
		reader, err := n.Admit(ctx, Request{Agent: "a", Session: id, Ring: rings.Sandbox})
		if err != nil {
			t.Errorf("%s: a reader waits: %v", mode, err)
		}
		reader.Done()
		first.Done()
		third, err := n.Admit(ctx, Request{Agent: "a", Session: id})
		if err != nil {
			t.Errorf("%s: after the first is done: %v", mode, err)
		}
		third.Done()
	}
}

// H-19: what a run is refused for and may be admitted later is told without a record; what will never be isn't.
func TestH19NotNowEnds(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	all := session("s", rings.Strong)
	all.MaxParticipants = 6
	if _, err := n.CreateSession(ctx, all); err != nil {
		t.Fatal(err)
	}
	for _, agent := range []string{"free", "held", "stopped", "low", "busy", "full"} {
		n.score(agent, 0.7, false)
		if _, err := n.JoinSession(ctx, "s", agent); err != nil {
			t.Fatal(err)
		}
	}
	n.score("low", 0.5, false)
	if _, err := n.Quarantine(ctx, "held", Cause{Code: "operator", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	l := n.loop()
	halted(t, l, "stopped")
	l.Close()
	if _, err := n.SetAgent(ctx, "full", "uid:0", func(s *AgentSettings) { s.Plan = governance.Freemium }); err != nil {
		t.Fatal(err)
	}
	for _, r := range []Request{{Agent: "full"}, {Agent: "free", Session: "s"}} {
		adm, err := n.Admit(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		defer adm.Done()
	}
	before := len(n.log(audit.NodeChain))
	for _, tt := range []struct {
		want rings.Code
		r    Request
	}{
		{"", Request{Agent: "free"}}, {rings.CodeQuarantined, Request{Agent: "held"}}, {CodeAgentStopped, Request{Agent: "stopped"}},
		{rings.CodeInsufficientRing, Request{Agent: "low"}}, {CodeSessionBusy, Request{Agent: "busy", Session: "s"}},
		{link.CodeConcurrency, Request{Agent: "full"}}, {"", Request{Agent: "free", Session: "unknown"}},
	} {
		tt.r.Ring = rings.Standard
		if err := n.NotNow(ctx, tt.r); code(t, err) != tt.want {
			t.Errorf("%+v: %v, want %q", tt.r, err, tt.want)
		}
	}
	if after := len(n.log(audit.NodeChain)); after != before {
		t.Errorf("%d records more", after-before)
	}
}

func TestH32SharedContextLasts(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	if _, err := n.CreateSession(ctx, session("s", rings.Eventual)); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"a", "b"} {
		if _, err := n.JoinSession(ctx, "s", a); err != nil {
			t.Fatal(err)
		}
	}
	put := func(agent, value string, at time.Time) rings.ConflictKind {
		t.Helper()
		r, err := n.PutShared(ctx, "s", rings.SharedWrite{Agent: agent, Key: "k", Value: []byte(value), At: at})
		if err != nil {
			t.Fatal(err)
		}
		return r.Conflict
	}
	if c := put("a", "first", n.now); c != rings.NoConflict {
		t.Error(c)
	}
	n.restart()
	if c := put("b", "late", n.now.Add(-time.Second)); c != rings.Late {
		t.Error(c)
	}
	n.now = n.now.Add(time.Second)
	if c := put("b", "second", n.now); c != rings.Replaced {
		t.Error(c)
	}
	n.restart()
	r, err := n.GetShared(ctx, "s", "a", "k")
	if err != nil || len(r.Values) != 1 || string(r.Values[0].Value) != "second" {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := n.GetShared(ctx, "s", "c", "k"); !errors.Is(err, rings.ErrNotParticipant) {
		t.Errorf("a stranger reads: %v", err)
	}
	if _, err := n.Quarantine(ctx, "a", Cause{Code: "operator", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.PutShared(ctx, "s", rings.SharedWrite{Agent: "a", Key: "k", Value: []byte("x")}); code(t, err) != rings.CodeQuarantined {
		t.Errorf("one in quarantine writes: %v", err)
	}
	if _, err := n.GetShared(ctx, "s", "a", "k"); code(t, err) != rings.CodeQuarantined {
		t.Errorf("one in quarantine reads: %v", err)
	}
	kinds := strings.Join(n.log("session-s"), " ")
	if strings.Count(kinds, "conflict") != 2 {
		t.Errorf("audit: %s, want both lost values on record", kinds)
	}
}

func TestH24BreachEndsTheRun(t *testing.T) {
	for _, tt := range []struct {
		name        string
		adm         Admission
		mode        profiles.OnBreach
		kill, holds bool
	}{
		{"agent in ring 2", Admission{Agent: "a", Ring: rings.Standard}, "", true, true},
		{"agent in ring 3", Admission{Agent: "a", Ring: rings.Sandbox}, "", true, true},
		{"agent in ring 3, kill", Admission{Agent: "a", Ring: rings.Sandbox}, profiles.BreachKill, true, true},
		{"operator's run", Admission{Ring: rings.Standard}, "", true, false},
		{"operator's run, kill", Admission{Ring: rings.Standard}, profiles.BreachKill, true, false},
		{"operator's run, record", Admission{Ring: rings.Standard}, profiles.BreachRecord, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			c := n.Control(tt.adm, ControlOptions{Run: "run1", OnBreach: tt.mode, Processes: newCrew()})
			w := c.Watch(WatchOptions{})
			if err := w.Start(status("run1")); err != nil {
				t.Fatal(err)
			}
			mount := runtime.Refusal{At: n.now, Syscall: "mount", Called: rings.Root, Verdict: "EPERM"}
			if err := w.Refused(mount); err != nil {
				t.Errorf("one attempt is a breach: %v", err)
			}
			for range 100 {
				err := w.Refused(mount)
				if _, policy := errors.AsType[*runtime.PolicyError](err); err != nil && !(policy && tt.mode == "" && !tt.holds) {
					t.Fatal(err)
				}
			}
			if c.over() != tt.kill {
				t.Errorf("killed %v, want %v", c.over(), tt.kill)
			}
			if ring, _ := c.Ring(); (tt.kill || tt.holds) && ring != rings.Sandbox {
				t.Errorf("the run is in %v after the breach", ring)
			}
			if err := c.Close(); err != nil { // when the kill is on record
				t.Fatal(err)
			}
			if err := w.End(status("run1")); err != nil {
				t.Fatal(err)
			}
			if held := n.agent("a").Quarantined != nil; held != tt.holds {
				t.Errorf("in quarantine %v, want %v", held, tt.holds)
			}
			kinds := strings.Join(n.log("node"), " ")
			// The first at once, those up to the breach with it, the rest at the end.
			want := "sandbox_start refusal refusal breach"
			if tt.holds {
				want += " quarantine"
			}
			if tt.mode == profiles.BreachRecord || tt.mode == "" && tt.holds {
				want += " refusal breach" // it goes on, to critical
			}
			if tt.kill {
				want += " kill_order kill"
			}
			want += " refusal sandbox_end"
			if got := kinds; got != want {
				t.Errorf("audit: %s, want %s", got, want)
			}
		})
	}
}

// H-24: a few ordinary refusals are no breach.
func TestH24OrdinaryRefusals(t *testing.T) {
	n := newNode(t)
	w := n.Control(Admission{Agent: "a", Ring: rings.Sandbox}, ControlOptions{Run: "run1", OnBreach: profiles.BreachKill}).Watch(WatchOptions{})
	if err := w.Start(status("run1")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := w.Refused(runtime.Refusal{At: n.now, Syscall: "execve", Called: rings.Standard, Verdict: "EPERM"}); err != nil {
			t.Fatal(err)
		}
	}
	if n.agent("a").Quarantined != nil {
		t.Error("three execs are a breach")
	}
}

// A state that can't be read frees nobody.
func TestH31BrokenStateRefuses(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.99, true)
	n.restart()
	if err := os.WriteFile(filepath.Join(n.dir, "state.db"), []byte(strings.Repeat("x", 9000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Admit(t.Context(), Request{Agent: "a"}); err == nil {
		t.Error("admitted")
	} else if _, corrupt := errors.AsType[*store.CorruptError](err); !corrupt {
		t.Errorf("got %v, want a corrupt file named", err)
	}
}

// M-22: a state that somebody has locked and not written to is what it was when it was read; one that was written to since can't be told.
func TestM22LockedStateStands(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.75, false)
	c := n.Control(n.admit(Request{Agent: "a"}), ControlOptions{Run: "r"})
	t.Cleanup(func() { _ = c.Close() })
	l := c.live
	of := func(do func()) { l.readMu.Lock(); defer l.readMu.Unlock(); do() }
	for sure := false; !sure; of(func() { sure = l.sure }) {
		if _, _, err := l.now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	other, err := store.Open(n.dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	in, out, over := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		over <- other.View(t.Context(), func(*store.Tx) error { close(in); <-out; return nil })
	}()
	<-in
	ask := func() (rings.Ring, error) {
		of(func() { l.readAt = l.readAt.Add(-anywayTime) })
		_, ring, err := l.now(t.Context())
		return ring, err
	}
	if ring, err := ask(); ring != rings.Standard || err != nil {
		t.Errorf("locked: %v, %v, want ring 2", ring, err)
	}
	if err := os.Chtimes(filepath.Join(n.dir, stateFile), time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if ring, err := ask(); ring != rings.Sandbox || err == nil {
		t.Errorf("written to: %v, %v, want ring 3", ring, err)
	}
	close(out)
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// H-31, M-22: what can't be read is ring 3, also where nobody has written to it: only a lock is waited out.
func TestM22UnreadableStateIsRing3(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.75, false)
	c := n.Control(n.admit(Request{Agent: "a"}), ControlOptions{Run: "r"})
	t.Cleanup(func() { _ = c.Close() })
	l := c.live
	of := func(do func()) { l.readMu.Lock(); defer l.readMu.Unlock(); do() }
	for sure := false; !sure; of(func() { sure = l.sure }) {
		if _, _, err := l.now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	lock := filepath.Join(n.dir, "state.lock")
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	of(func() { l.readAt = l.readAt.Add(-anywayTime) })
	if _, ring, err := l.now(t.Context()); ring != rings.Sandbox || err == nil {
		t.Errorf("without a lock: %v, %v, want ring 3", ring, err)
	}
}

// H-26: whoever can rename in the folders above a chain can exchange it; nothing is granted on such a record.
func TestH26FoldersAreOnlyOurs(t *testing.T) {
	for _, dir := range []string{".", auditDir} {
		n := newNode(t)
		n.score("a", 0.1, false)
		n.restart()
		if err := os.Chmod(filepath.Join(n.dir, dir), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := n.Control(Admission{Ring: rings.Sandbox}, ControlOptions{Run: "r"}).Watch(WatchOptions{}).Start(status("r")); !errors.Is(err, ErrOthersCanWrite) {
			t.Errorf("%s open to all: got %v", dir, err)
		}
	}
}

// H-31: a saga's step of an agent in quarantine doesn't begin; undoing goes on.
func TestH31SagaStepsOfAHeldAgent(t *testing.T) {
	n := newNode(t)
	tr := sagas.Transition{Agent: "a", SagaID: "s", StepID: "b", State: sagas.StepExecuting, AttemptCount: 1}
	if err := n.SagaTransition(t.Context(), tr); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	if err := n.SagaTransition(t.Context(), tr); code(t, err) != rings.CodeQuarantined {
		t.Errorf("a step begins: %v", err)
	}
	tr.State, tr.Undo = sagas.StepCommitted, true
	if err := n.SagaTransition(t.Context(), tr); err != nil {
		t.Errorf("undoing is refused: %v", err)
	}
	if d := cmp.Diff([]string{"saga_step", "quarantine", "saga_step"}, n.log("node")); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
}

// H-27: a denied path is on record; asking in which ring a run would be leaves nothing behind.
func TestH27RefusedPathIsOnRecord(t *testing.T) {
	n := newNode(t)
	if _, err := n.RingFor(t.Context(), Request{Agent: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(n.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a question made the state folder: %v", err)
	}
	n.score("a", math.Copysign(0, -1), false)
	if a := n.agent("a"); math.Signbit(*a.Score) {
		t.Error("the score is -0")
	}
	d, ok := errors.AsType[*DeniedError](n.PathCheck(nil)("", []string{n.dir}, new(mounts.View)))
	if !ok {
		t.Fatal("the state folder may be shown")
	}
	if err := n.Refuse(Request{Agent: "a", Run: "r"}, rings.Sandbox, d); code(t, err) != CodeOtherSession {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"score", "ring_check"}, n.log("node")); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
}
