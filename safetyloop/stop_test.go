// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/store"
	"agentrun/store/storetest"
	"agentrun/telemetry"
)

func TestS8StopHoldsTheAgentAndNotItsName(t *testing.T) {
	b := newBench(t)
	b.wantOK(b.call(alice, opExecute, pElement, "waiting"))
	d := b.step(alice, "a", "deny")
	id := meta(d, noteDanger, "verificationId")
	if d.Continue || !d.Stopped || !isID(id) || d.NextStepRisk != tierDanger || d.Reason == "" {
		t.Fatalf("got %+v", d)
	}
	for _, element := range []string{"a", "b", "A", "waiting"} {
		if d := b.step(alice, element, "auto"); !d.Stopped || meta(d, noteDanger, "verificationId") != id {
			t.Errorf("as %s: got %+v", element, d)
		}
		for _, op := range []string{opExecute, opComplete, opAbort} {
			if d := b.wantCode(b.call(alice, op, pElement, element), CodeDenied); d["stopped"] != true || d["verificationId"] != id {
				t.Errorf("%s as %s: details %v", op, element, d)
			}
		}
	}
	b.wantCode(b.call(alice, opConfirm, pToken, "conf_x"), CodeDenied)
	if got := b.wantOK(b.call(alice, opIntrospect))["safety_loop"].(map[string]any)["caller"].(map[string]any); got["stopped"] != true || got["verificationId"] != id {
		t.Errorf("introspection: %v", got)
	}
	if !b.step(bob, "a", "x").Continue {
		t.Error("another client was stopped too")
	}

	// It persists: a new process over the same store stops it too, with a challenge of its own.
	b.restart()
	d = b.step(alice, "z", "auto")
	again := meta(d, noteDanger, "verificationId")
	if !d.Stopped || again == "" || again == id {
		t.Fatalf("after a restart: got %+v", d)
	}
	if c := b.Challenges(t.Context()); len(c) != 1 || c[0].Hint != "deny" || c[0].Agent != "alice/a" {
		t.Errorf("what the operator reads after a restart: %v", c)
	}
	b.wantCode(b.call(alice, opVerify, pChallenge, again, pCode, "WRONG"), CodeDenied)
	b.wantOK(b.call(alice, opVerify, pChallenge, again, pCode, b.code(again)))
	if d := b.step(alice, "z", "x"); !d.Continue || d.Stopped {
		t.Errorf("verified: got %+v", d)
	}
	if d := b.step(alice, "z", "deny"); !d.Stopped {
		t.Error("the code let a denied step pass: it releases the agent, not the step")
	}
}

func TestS8IsBroadcast(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.MaxSteps = 100 })
	b.step(bob, "one", "x")
	b.step(bob, "two", "x")
	b.wantOK(b.call(operator, opExecute, pElement, "three"))
	id := meta(b.step(alice, "a", "score:99 my secret plan"), noteDanger, "verificationId")
	for _, c := range []struct {
		who     Caller
		element string
	}{{bob, "one"}, {bob, "two"}, {operator, "three"}} {
		d := b.step(c.who, c.element, "x")
		if !d.Continue || d.Stopped || meta(d, noteDanger, "verificationId") != id {
			t.Errorf("%s: got %+v", c.element, d)
		}
		for _, n := range d.Notifications {
			if strings.Contains(n.Message, "secret plan") || n.Timestamp.IsZero() {
				t.Errorf("%s: got %+v", c.element, n)
			}
		}
		if n := b.step(c.who, c.element, "x").Notifications; len(n) != 0 {
			t.Errorf("%s: told twice: %v", c.element, n)
		}
	}
}

// breaking is a store whose reading or writing breaks.
type breaking struct {
	store.Store
	reading, writing bool
}

func (b *breaking) View(ctx context.Context, fn func(*store.Tx) error) error {
	if b.reading {
		return storetest.ErrInjected
	}
	return b.Store.View(ctx, fn)
}

func (b *breaking) Update(ctx context.Context, fn func(*store.Tx) error) error {
	if b.writing {
		return storetest.ErrInjected
	}
	return b.Store.Update(ctx, fn)
}

func TestS8UnreadableStoreStopsEverybody(t *testing.T) {
	put := func(key, raw string) func(*testing.T) store.Store {
		return func(t *testing.T) store.Store {
			m := store.NewMemory()
			if err := m.Update(t.Context(), func(tx *store.Tx) error { return tx.Bucket(blocksBucket).Put(key, []byte(raw)) }); err != nil {
				t.Fatal(err)
			}
			return m
		}
	}
	for name, open := range map[string]func(*testing.T) store.Store{
		"cut":             put("mallory", `{"agent":`),
		"null":            put("mallory", `null`),
		"newer":           put("mallory", `{"agent":"mallory","principal":"mallory","reason":"x","code":"x","since":"2026-11-21T08:00:00Z","paused":true}`),
		"empty":           put("mallory", `{}`),
		"another's":       put("mallory", `{"agent":"m","principal":"eve","reason":"x","code":"x","since":"2026-11-21T08:00:00Z"}`),
		"no disk":         func(*testing.T) store.Store { return &breaking{store.NewMemory(), true, true} },
		"overwritten":     damaged(func(f string) error { return os.WriteFile(f, []byte(strings.Repeat("garbage!", 4096)), 0o600) }),
		"cut to nothing":  damaged(func(f string) error { return os.Truncate(f, 0) }),
		"cut in the page": damaged(func(f string) error { return os.Truncate(f, 5000) }),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			b := newBench(t, func(set *Settings) { set.Store = s })
			for _, c := range []Caller{alice, bob, {Principal: "sandbox", Bound: true}} {
				if d := b.step(c, "a", "auto"); d.Continue || !d.Stopped || !strings.Contains(d.Reason, "can't be read") {
					t.Errorf("step: got %+v", d)
				}
				b.wantCode(b.call(c, opExecute, pElement, "a"), CodeDenied)
				wantErr(t, b.Blocked(t.Context(), c), ErrUnread)
				wantErr(t, b.Intent(t.Context(), c, "read", ""), ErrUnread)
			}
			state := b.wantOK(b.call(alice, opIntrospect))["safety_loop"].(map[string]any)["caller"].(map[string]any)
			if state["stopped"] != true || state["reason"] != ErrUnread.Error() {
				t.Errorf("introspection: %v", state)
			}
			if _, err := b.Blocks(t.Context()); !errors.Is(err, ErrUnread) {
				t.Errorf("blocks: got %v", err)
			}
			wantErr(t, b.Unblock(t.Context(), "uid:0", "alice", "x"), ErrUnread)
		})
	}
}

// damaged gives a store in a file that something happened to.
func damaged(damage func(file string) error) func(*testing.T) store.Store {
	return func(t *testing.T) store.Store {
		dir := t.TempDir()
		db := onDisk(t, dir)
		files, err := filepath.Glob(filepath.Join(dir, "*.db"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %v", files, err)
		}
		if err := damage(files[0]); err != nil {
			t.Fatal(err)
		}
		return db
	}
}

// onDisk gives the store that processes have.
func onDisk(t testing.TB, dir string) store.Store {
	t.Helper()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestS8BlockThatCannotBeWrittenHolds(t *testing.T) {
	disk := &breaking{Store: store.NewMemory()}
	b := newBench(t, func(s *Settings) { s.Store = disk })
	disk.writing = true
	if d := b.step(alice, "a", "deny"); !d.Stopped || meta(d, noteDanger, "verificationId") == "" {
		t.Fatalf("got %+v", d)
	}
	if d := b.step(alice, "b", "auto"); !d.Stopped {
		t.Errorf("got %+v", d)
	}
	wantErr(t, b.Blocked(t.Context(), alice), ErrBlocked)
	if !b.account.has("block unsaved deny_pattern") {
		t.Errorf("got %q", b.account.lines())
	}
	blocks, err := b.Blocks(t.Context())
	if err != nil || len(blocks) != 1 || blocks[0].Agent != "alice/a" {
		t.Errorf("blocks: %v, %v", blocks, err)
	}
	b.Forget("alice")
	disk.writing = false
	b.step(alice, "a", "auto") // tried again
	b.restart()
	if d := b.step(alice, "a", "auto"); !d.Stopped {
		t.Errorf("after a restart: got %+v", d)
	}
}

func TestS8OperatorsReleaseByName(t *testing.T) {
	b := newBench(t)
	b.step(alice, "a", "deny")
	blocks, err := b.Blocks(t.Context())
	if err != nil || len(blocks) != 1 || blocks[0].Agent != "alice/a" || !isID(blocks[0].Challenge) || blocks[0].Since.IsZero() {
		t.Fatalf("blocks: %+v, %v", blocks, err)
	}
	wantErr(t, b.Unblock(t.Context(), "uid:0", "alice", "x"), ErrNotFound)
	if err := b.Unblock(t.Context(), "uid:0", "alice/a", "looked at it"); err != nil {
		t.Fatal(err)
	}
	if !b.step(alice, "a", "x").Continue || len(b.Challenges(t.Context())) != 0 || !b.account.has("block released operator") {
		t.Errorf("released: %q, %v", b.account.lines(), b.Challenges(t.Context()))
	}
	// Two clients' agents of one name are nobody's guess.
	b.step(Caller{Principal: "x/y"}, "z", "deny")
	b.step(Caller{Principal: "x"}, "y/z", "deny")
	wantErr(t, b.Unblock(t.Context(), "uid:0", "x/y/z", "x"), ErrSetting)
}

func TestS9VerifyPausesThisAgentAlone(t *testing.T) {
	b := newBench(t)
	d := b.step(alice, "a", "score:70 send it")
	id := meta(d, notePause, "verificationId")
	if d.Continue || d.Stopped || !isID(id) || d.NextStepRisk != tierVerify {
		t.Fatalf("got %+v", d)
	}
	for _, hint := range []string{"auto", "score:70 send it", "deny"} {
		if d := b.step(alice, "a", hint); d.Continue || d.Stopped || meta(d, notePause, "verificationId") != id {
			t.Errorf("%s: got %+v", hint, d)
		}
	}
	b.wantOK(b.call(alice, opExecute, pElement, "new")) // new executions may start
	if d := b.step(alice, "new", "x"); !d.Continue || meta(d, notePause, "verificationId") != "" {
		t.Errorf("another agent of the client: got %+v", d)
	}
	if d := b.step(bob, "a", "x"); !d.Continue || len(d.Notifications) != 0 {
		t.Errorf("another client: got %+v", d)
	}
	if blocks, _ := b.Blocks(t.Context()); len(blocks) != 0 {
		t.Errorf("blocked: %v", blocks)
	}

	// Expired: evaluated anew, with a new challenge.
	b.clock.turn(ChallengeTTL)
	if !b.step(alice, "a", "x").Continue {
		t.Error("an expired challenge still pauses")
	}
	next := meta(b.step(alice, "a", "score:70 send it"), notePause, "verificationId")
	if next == "" || next == id {
		t.Errorf("new challenge: got %q", next)
	}
	b.wantOK(b.call(alice, opVerify, pChallenge, next, pCode, strings.ToLower(b.code(next))))
	if d := b.step(alice, "a", "score:70 send that"); d.Continue {
		t.Error("the verification of one step let another pass")
	}
	last := meta(b.step(alice, "a", "x"), notePause, "verificationId")
	if err := b.Verify(t.Context(), "uid:0", last, b.code(last)); err != nil {
		t.Fatal(err)
	}
	if d := b.step(alice, "a", "score:70  send it"); !d.Continue {
		t.Errorf("verified: got %+v", d)
	}
	if d := b.step(alice, "a", "score:70 send it"); d.Continue {
		t.Error("one verification let the step pass twice")
	}

	// Not persisted.
	b.restart()
	if !b.step(alice, "a", "x").Continue {
		t.Error("a pause survived the restart")
	}
	// A sandbox's agent is one agent under all its labels.
	jail := Caller{Principal: "jail", Bound: true}
	b.step(jail, "a", "score:70")
	if b.step(jail, "b", "x").Continue {
		t.Error("a label got around the pause")
	}
}

func TestS15StopFreezesAndResumes(t *testing.T) {
	f := &freezer{}
	b := newBench(t, func(s *Settings) { s.Enforcer = f })
	jail := Caller{Principal: "did:x:jail", Bound: true, Session: "s1"}
	f.before = func() {
		// The block is on the disk before the processes stand still.
		all, err := b.readBlocks(context.Background())
		if _, is := all[jail.Principal]; !is || err != nil {
			t.Errorf("stopped before the block was saved: %v, %v", all, err)
		}
	}
	f.err = errors.New("no such cgroup")
	if d := b.step(jail, "a", "deny"); !d.Stopped {
		t.Fatalf("got %+v", d)
	}
	if !b.account.has("block stop_failed enforcer") {
		t.Errorf("a failing stop isn't recorded: %q", b.account.lines())
	}
	f.err = nil
	b.step(jail, "a", "x") // tried again
	b.step(jail, "a", "x") // and not once more
	f.before = nil
	id := b.Challenges(t.Context())[0].ID
	f.err = errors.New("thaw: busy")
	if err := b.Verify(t.Context(), "uid:0", id, b.code(id)); err != nil {
		t.Fatal(err)
	}
	if !b.account.has("block resume_failed enforcer") {
		t.Errorf("a failing resume isn't recorded: %q", b.account.lines())
	}
	if err := b.Sync(t.Context()); err == nil {
		t.Error("Sync: a sandbox that doesn't follow is no error")
	}
	f.err = nil
	if err := b.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	want := []string{"stop did:x:jail", "stop did:x:jail", "resume did:x:jail", "resume did:x:jail", "resume did:x:jail"}
	if diff := cmp.Diff(want, f.events); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	// Another process's stop and release reach this one's sandbox.
	f.events = nil
	other, err := New(b.set)
	if err != nil {
		t.Fatal(err)
	}
	other.set.Enforcer = nil
	defer other.Close()
	r := other.Do(t.Context(), Call{Caller: jail, Endpoint: Create, Operation: opStep, Params: telemetry.NewPlaintext(params(pElement, "a", pHint, "deny"))})
	if !r.Data.(Directive).Stopped {
		t.Fatalf("got %+v", r)
	}
	if err := b.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if err := other.Unblock(t.Context(), "uid:0", jail.Principal, "x"); err != nil {
		t.Error(err)
	}
	if err := b.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"stop did:x:jail", "resume did:x:jail"}, f.events); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestS15IntentIsConsumedOnce(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.MaxSteps = 100 })
	jail := Caller{Principal: "jail", Bound: true}
	use := func(tool, target string) error { return b.Intent(t.Context(), jail, tool, target) }
	wantErr(t, use("write_file", "/data/a.txt"), ErrIntent)
	report := func(hint string) { b.step(jail, "a", hint) }
	for _, c := range []struct {
		hint, tool, target string
		ok                 bool
	}{
		{"calling write_file on /data/a.txt to note it", "write_file", "/data/a.txt", true},
		{"calling write_file on /data/a.txt.", "write_file", "/data/a.txt", true},
		{"calling write_file on /data/a.txt.bak", "write_file", "/data/a.txt", false},
		{"calling write_file on /other/data/a.txt", "write_file", "/data/a.txt", false},
		{"calling write_file on /data/a.txt", "write_file", "/data/a", false},
		{"calling write_file on '/data/a.txt'", "read_file", "/data/a.txt", false},
		{"calling write_file_all on /data/a.txt", "write_file", "/data/a.txt", false},
		{"sending by mail.send(bob@example.org)", "mail.send", "bob@example.org", true},
		{"look at them", "read", "notes", true}, // as judged
		{"look at them", "read", "others", false},
		{"calling list_tools", "list_tools", "", true},
		{"calling list_tools", "", "", false},
		{"score:50 calling write_file on /data/a.txt", "write_file", "/data/a.txt", false}, // paused, not approved
	} {
		b.Forget("jail")
		report(c.hint)
		if err := use(c.tool, c.target); (err == nil) != c.ok {
			t.Errorf("%q for %s %s: got %v", c.hint, c.tool, c.target, err)
		}
		if err := use(c.tool, c.target); err == nil {
			t.Errorf("%q for %s %s: twice", c.hint, c.tool, c.target)
		}
	}
	report("calling x on y")
	b.clock.turn(IntentTTL)
	wantErr(t, use("x", "y"), ErrIntent)
	report("calling x on y")
	b.clock.turn(-time.Second)
	wantErr(t, use("x", "y"), ErrIntent) // made in the future
	b.clock.turn(time.Second)
	for range maxIntents + 5 {
		report("calling x on y")
	}
	n := 0
	for n <= maxIntents && use("x", "y") == nil {
		n++
	}
	if n != maxIntents {
		t.Errorf("%d steps were kept, want %d", n, maxIntents)
	}
	report("calling x on y")
	wantErr(t, b.Intent(t.Context(), Caller{Principal: "other", Bound: true}, "x", "y"), ErrIntent)
	report("deny")
	wantErr(t, use("x", "y"), ErrBlocked)
	id := b.Challenges(t.Context())[0].ID
	if err := b.Verify(t.Context(), "uid:0", id, b.code(id)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, use("x", "y"), ErrIntent) // a stop takes back what was approved
	if !b.account.has("require_intent ok") || !b.account.has("require_intent intent_missing") {
		t.Error("tool calls aren't recorded")
	}
	monitoring := newBench(t, func(s *Settings) { s.Mode = Monitoring })
	if err := monitoring.Intent(t.Context(), jail, "x", "y"); err != nil || !monitoring.account.has("require_intent intent_missing") {
		t.Errorf("monitoring: got %v, %q", err, monitoring.account.lines())
	}
}

func TestS13NotificationsAreBounded(t *testing.T) {
	e := &execution{}
	for range 3 {
		e.add(Notification{Type: noteDanger, Metadata: map[string]any{}})
		for i := range 2 * maxNotes {
			e.add(Notification{Type: notePermission, Message: string(rune('a' + i))})
		}
	}
	danger := 0
	for _, n := range e.notes {
		if n.Type == noteDanger {
			danger++
		}
	}
	if danger != 3 || len(e.notes) != 3+maxNotes || e.notes[len(e.notes)-1].Message != string(rune('a'+2*maxNotes-1)) {
		t.Errorf("%d of danger, %d in all: %+v", danger, len(e.notes), e.notes)
	}
	for range 200 {
		e.add(Notification{Type: noteDanger, Metadata: map[string]any{}})
	}
	told := 0
	for _, n := range e.notes {
		if n.Type == noteDanger {
			more, _ := n.Metadata["more"].(int)
			told += 1 + more
		}
	}
	if told != 203 || len(e.notes) > maxNotes+maxDangerNotes {
		t.Errorf("%d stops told of 203, in %d notifications", told, len(e.notes))
	}
}

func TestS13PendingOperationIsToldWithTheNextStep(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.Confirm = ConfirmServer })
	token := b.wantCode(b.call(alice, opStep, pElement, "a", pHint, "x"), CodeConfirmation)["confirmation_token"].(string)
	if err := b.Confirm(t.Context(), "uid:0", token); err != nil {
		t.Fatal(err)
	}
	b.step(alice, "a", "x", pToken, token)
	token = b.wantCode(b.call(alice, opComplete, pElement, "a"), CodeConfirmation)["confirmation_token"].(string)
	d := b.step(alice, "a", "y")
	if meta(d, notePermission, "confirmation_token") != token || meta(d, notePermission, "operation") != opComplete {
		t.Errorf("got %+v", d)
	}
	// What nobody asked for any more is told at the end.
	b.step(bob, "b", "x", pToken, confirmFor(b, bob, opStep, pElement, "b", pHint, "x"))
	b.step(alice, "a", "deny")
	token = confirmFor(b, bob, opComplete, pElement, "b")
	data := b.wantOK(b.call(bob, opComplete, pElement, "b", pToken, token))
	if notes, _ := data["notifications"].([]Notification); len(notes) == 0 || notes[0].Type != noteDanger {
		t.Errorf("got %v", data)
	}
}

// confirmFor asks for a confirmation and gives it.
func confirmFor(b *bench, c Caller, op string, pairs ...any) string {
	b.t.Helper()
	token := b.wantCode(b.call(c, op, pairs...), CodeConfirmation)["confirmation_token"].(string)
	if err := b.Confirm(b.t.Context(), "uid:0", token); err != nil {
		b.t.Fatal(err)
	}
	return token
}
