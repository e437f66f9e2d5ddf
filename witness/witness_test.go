// SPDX-License-Identifier: Apache-2.0

package witness_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/witness"
	"agentrun/witness/noncetest"
)

var (
	start   = time.Date(2026, 11, 21, 4, 2, 51, 0, time.UTC)
	release = witness.Want{Action: witness.ReleaseQuarantine, Subject: "agent:planner-1"}
)

func newKey(t testing.TB, name string) (*witness.Key, witness.Keys) {
	t.Helper()
	k, err := witness.NewKey(name)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := witness.ParseKeys([]byte("# on call\n\n" + k.Verifier() + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return k, keys
}

func statement(ttl time.Duration) witness.Statement {
	return witness.Statement{Action: release.Action, Subject: release.Subject, Nonce: witness.NewNonce(), Expires: start.Add(ttl)}
}

func sign(t testing.TB, k *witness.Key, s witness.Statement) string {
	t.Helper()
	text, err := k.Sign(s, s.Expires.Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestH12WitnessIsGoodOnce(t *testing.T) {
	k, keys := newKey(t, "alice@ops")
	s := statement(witness.DefaultTTL)
	text := sign(t, k, s)
	var nonces memory
	got, err := keys.Verify(text, release, start, &nonces)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(witness.Attestation{Statement: s, Key: k.ID()}, got); diff != "" {
		t.Error(diff)
	}
	got, err = keys.Verify(text, release, start, &nonces)
	if !errors.Is(err, witness.ErrNonceUsed) || got != (witness.Attestation{}) {
		t.Errorf("the second time: %+v, %v", got, err)
	}
}

// Every refusal has its own error, and none of them uses the nonce up.
func TestH12WitnessRefusals(t *testing.T) {
	k, keys := newKey(t, "alice")
	stranger, _ := newKey(t, "alice")
	text := sign(t, k, statement(time.Minute))
	fields := strings.Split(text, "/")
	field := func(n int, value string) string {
		f := append([]string{}, fields...)
		f[n] = value
		return strings.Join(f, "/")
	}
	flipped := []byte(fields[6])
	flipped[3] = map[bool]byte{true: 'B', false: 'A'}[flipped[3] == 'A'] // another letter of base64: bits of one may lead out of it
	other := func(action, subject string) witness.Want { return witness.Want{Action: action, Subject: subject} }
	forged := strings.Split(sign(t, stranger, statement(time.Minute)), "/")
	forged[5] = k.ID()
	cases := []struct {
		name string
		keys witness.Keys
		text string
		want witness.Want
		now  time.Time
		err  error
	}{
		{"nobody trusted", witness.Keys{}, text, release, start, witness.ErrUnknownKey},
		{"stranger of the same name", keys, sign(t, stranger, statement(time.Minute)), release, start, witness.ErrUnknownKey},
		{"stranger under our id", keys, strings.Join(forged, "/"), release, start, witness.ErrSignature},
		{"signature changed", keys, field(6, string(flipped)), release, start, witness.ErrSignature},
		{"action changed", keys, field(1, "other-action"), other("other-action", release.Subject), start, witness.ErrSignature},
		{"subject changed", keys, field(2, "agent:planner-2"), other(release.Action, "agent:planner-2"), start, witness.ErrSignature},
		{"expiry changed", keys, field(3, "2026-11-21T05:00:00Z"), release, start, witness.ErrSignature},
		{"nonce changed", keys, field(4, witness.NewNonce().String()), release, start, witness.ErrSignature},
		{"other action", keys, text, other("other-action", release.Subject), start, witness.ErrAction},
		{"other subject", keys, text, other(release.Action, "agent:planner-2"), start, witness.ErrSubject},
		{"subject that ours starts", keys, text, other(release.Action, "agent:planner-10"), start, witness.ErrSubject},
		{"in the instant of expiry", keys, text, release, start.Add(time.Minute), witness.ErrExpired},
		{"long expired", keys, text, release, start.Add(1000 * time.Hour), witness.ErrExpired},
		{"too far ahead", keys, sign(t, k, statement(witness.MaxTTL+time.Second)), release, start, witness.ErrTooFar},
		{"clock at zero", keys, text, release, time.Time{}, witness.ErrTooFar},
		{"nothing wanted", keys, text, witness.Want{}, start, witness.ErrMalformed},
		{"subject without kind", keys, text, other(release.Action, "planner-1"), start, witness.ErrMalformed},
		{"empty", keys, "", release, start, witness.ErrMalformed},
		{"other version", keys, field(0, "agentrun-witness-v2"), release, start, witness.ErrMalformed},
		{"no signature", keys, strings.Join(fields[:6], "/"), release, start, witness.ErrMalformed},
		{"more fields", keys, text + "/", release, start, witness.ErrMalformed},
		{"two in one", keys, text + " " + text, release, start, witness.ErrMalformed},
		{"fraction of a second", keys, field(3, "2026-11-21T04:03:51.0Z"), release, start, witness.ErrMalformed},
		{"other zone", keys, field(3, "2026-11-21T04:03:51+00:00"), release, start, witness.ErrMalformed},
		{"nonce in upper case", keys, field(4, strings.Repeat("AB", 16)), release, start, witness.ErrMalformed},
		{"nonce zero", keys, field(4, strings.Repeat("0", 32)), release, start, witness.ErrMalformed},
		{"nonce short", keys, field(4, "ab"), release, start, witness.ErrMalformed},
		{"signature padded", keys, text + "==", release, start, witness.ErrMalformed},
		{"signature with loose bits", keys, text[:len(text)-1] + "_", release, start, witness.ErrMalformed},
		{"huge", keys, text + strings.Repeat(" ", 1<<20), release, start, witness.ErrMalformed},
	}
	var nonces memory
	for _, c := range cases {
		a, err := c.keys.Verify(c.text, c.want, c.now, &nonces)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if a != (witness.Attestation{}) {
			t.Errorf("%s: got %+v with an error", c.name, a)
		}
	}
	if _, err := keys.Verify(text, release, start, nil); !errors.Is(err, witness.ErrNonces) {
		t.Errorf("without a store: %v, want %v", err, witness.ErrNonces)
	}
	if _, err := keys.Verify(text, release, start, brokenStore{}); !errors.Is(err, witness.ErrNonces) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("with a full disk: %v, want %v and its cause", err, witness.ErrNonces)
	}
	if _, err := keys.Verify(text, release, start, &nonces); err != nil {
		t.Errorf("after all refusals: %v, want it still good", err)
	}
}

type brokenStore struct{}

func (brokenStore) Use(witness.Nonce, time.Time) error { return syscall.ENOSPC }

// What terminals, mails and shells do to a long word.
func TestH12WitnessSurvivesCopyAndPaste(t *testing.T) {
	k, keys := newKey(t, "alice")
	wrapped := func(s string) string {
		var b strings.Builder
		for i, c := range s {
			if i > 0 && i%72 == 0 {
				b.WriteString("\r\n\t ")
			}
			b.WriteRune(c)
		}
		return " \n" + b.String() + "\n\n"
	}
	for range 20 {
		text := sign(t, k, statement(time.Minute))
		if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/:+-_.@") != "" {
			t.Errorf("%s: has a character that needs quoting", text)
		}
		if _, err := keys.Verify(wrapped(text), release, start, &memory{}); err != nil {
			t.Error(err)
		}
	}
}

func TestInspectUsesNothing(t *testing.T) {
	k, keys := newKey(t, "alice")
	text := sign(t, k, statement(time.Minute))
	for range 2 {
		a, err := keys.Inspect(text, start)
		if err != nil || a.Subject != release.Subject || a.Key != k.ID() {
			t.Errorf("got %+v, %v", a, err)
		}
	}
	if _, err := keys.Inspect(text, start.Add(time.Hour)); !errors.Is(err, witness.ErrExpired) {
		t.Errorf("later: %v, want %v", err, witness.ErrExpired)
	}
}

func TestSignRefuses(t *testing.T) {
	k, _ := newKey(t, "alice")
	good := statement(time.Minute)
	cases := map[string]struct {
		change func(*witness.Statement)
		err    error
	}{
		"zero":              {func(s *witness.Statement) { *s = witness.Statement{} }, witness.ErrMalformed},
		"no nonce":          {func(s *witness.Statement) { s.Nonce = witness.Nonce{} }, witness.ErrMalformed},
		"separator":         {func(s *witness.Statement) { s.Subject = "agent:a/b" }, witness.ErrMalformed},
		"line end":          {func(s *witness.Statement) { s.Subject = "agent:a\n" }, witness.ErrMalformed},
		"no kind":           {func(s *witness.Statement) { s.Subject = ":a" }, witness.ErrMalformed},
		"no id":             {func(s *witness.Statement) { s.Subject = "agent:" }, witness.ErrMalformed},
		"long subject":      {func(s *witness.Statement) { s.Subject = "agent:" + strings.Repeat("a", 600) }, witness.ErrMalformed},
		"action in capital": {func(s *witness.Statement) { s.Action = "Release" }, witness.ErrMalformed},
		"action with dash":  {func(s *witness.Statement) { s.Action = "-release" }, witness.ErrMalformed},
		"expired":           {func(s *witness.Statement) { s.Expires = start }, witness.ErrExpired},
		"in a fraction":     {func(s *witness.Statement) { s.Expires = start.Add(time.Millisecond) }, witness.ErrExpired},
		"too far":           {func(s *witness.Statement) { s.Expires = start.Add(witness.MaxTTL + time.Second) }, witness.ErrTooFar},
		"year 10000":        {func(s *witness.Statement) { s.Expires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, witness.ErrMalformed},
	}
	for name, c := range cases {
		s := good
		c.change(&s)
		if text, err := k.Sign(s, start); !errors.Is(err, c.err) || text != "" {
			t.Errorf("%s: got %q, %v, want %v", name, text, err, c.err)
		}
	}
}

// The bytes that are signed are for ever: this attestation was made by the first version.
func TestGoldenAttestation(t *testing.T) {
	seed := append([]byte{1}, []byte("0123456789abcdef0123456789abcdef")...)
	k, err := witness.ParseKey("PRIVATE+KEY+golden+" + goldenHash + "+" + base64.StdEncoding.EncodeToString(seed))
	if err != nil {
		t.Fatal(err)
	}
	var n witness.Nonce
	copy(n[:], "fixed for a test")
	text, err := k.Sign(witness.Statement{Action: release.Action, Subject: release.Subject, Nonce: n, Expires: start}, start.Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if text != golden {
		t.Errorf("got  %s\nwant %s", text, golden)
	}
}

func TestParseKeys(t *testing.T) {
	a, _ := newKey(t, "alice")
	b, _ := newKey(t, "bob")
	keys, err := witness.ParseKeys([]byte(b.Verifier() + "\n  # x\n\t" + a.Verifier() + "\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{a.ID(), b.ID()}, keys.IDs()); diff != "" {
		t.Error(diff)
	}
	line := a.Verifier()
	for name, text := range map[string]string{
		"twice":       line + "\n" + line,
		"cut":         line[:len(line)-5],
		"other name":  strings.Replace(line, "alice", "mallory", 1),
		"not a key":   "alice",
		"comment":     line + " # alice",
		"long line":   strings.Repeat("a", 100<<10),
		"bad name":    "al/ice" + strings.TrimPrefix(line, "alice"),
		"private key": privateText(t, a),
	} {
		keys, err := witness.ParseKeys([]byte(text))
		if !errors.Is(err, witness.ErrKeyFile) || len(keys.IDs()) > 0 {
			t.Errorf("%s: %v, %v, want %v and nobody", name, keys.IDs(), err, witness.ErrKeyFile)
		}
		if err != nil && strings.Contains(err.Error(), privateText(t, a)) {
			t.Errorf("%s: the error shows a private key", name)
		}
	}
}

func privateText(t testing.TB, k *witness.Key) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := k.Create(name); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestKeyFile(t *testing.T) {
	k, _ := newKey(t, "alice")
	name := filepath.Join(t.TempDir(), "operator.key")
	if err := k.Create(name); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode %o, want 600", info.Mode())
	}
	again, err := witness.LoadKey(name)
	if err != nil {
		t.Fatal(err)
	}
	if again.Verifier() != k.Verifier() || again.ID() != k.ID() {
		t.Errorf("read back as %s, want %s", again.Verifier(), k.Verifier())
	}
	if err := k.Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("written twice: %v, want %v", err, fs.ErrExist)
	}
	link := name + ".link"
	if err := os.Symlink(name+".new", link); err != nil {
		t.Fatal(err)
	}
	if err := k.Create(link); !errors.Is(err, fs.ErrExist) {
		t.Errorf("through a link: %v, want %v", err, fs.ErrExist)
	}
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := witness.LoadKey(name); !errors.Is(err, witness.ErrExposed) {
		t.Errorf("readable by the group: %v, want %v", err, witness.ErrExposed)
	}
}

func TestNamesOfOperators(t *testing.T) {
	for _, bad := range []string{"", "a+b", "a b", "a/b", "-a", "ä", "a\n", strings.Repeat("a", 65)} {
		if _, err := witness.NewKey(bad); !errors.Is(err, witness.ErrKeyFile) {
			t.Errorf("%q: %v, want %v", bad, err, witness.ErrKeyFile)
		}
	}
}

// Whoever can write the list, or put another in its place, is an operator.
func TestH12OperatorsFileIsOurs(t *testing.T) {
	k, _ := newKey(t, "alice")
	dir := filepath.Join(t.TempDir(), "etc")
	name := filepath.Join(dir, "operators")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(k.Verifier()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	load := func(want error) {
		t.Helper()
		keys, err := witness.LoadKeys(name)
		if !errors.Is(err, want) || want != nil && len(keys.IDs()) > 0 {
			t.Errorf("%v, %v, want %v", keys.IDs(), err, want)
		}
	}
	chmod := func(name string, mode fs.FileMode) {
		t.Helper()
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	load(nil)
	for _, mode := range []fs.FileMode{0o664, 0o646, 0o666} {
		chmod(name, mode)
		load(witness.ErrExposed)
	}
	chmod(name, 0o644)
	chmod(dir, 0o777)
	load(witness.ErrExposed)
	chmod(dir, 0o777|fs.ModeSticky)
	load(nil)
	chmod(dir, 0o755)
	if os.Geteuid() == 0 { // as root also: it is another's
		for _, owned := range []string{name, dir} {
			if err := os.Lchown(owned, 65534, 65534); err != nil {
				t.Fatal(err)
			}
			load(witness.ErrExposed)
			if err := os.Lchown(owned, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	load(nil)
	if err := os.Rename(name, name+".real"); err != nil {
		t.Fatal(err)
	}
	load(fs.ErrNotExist)
	if err := os.Symlink(name+".real", name); err != nil {
		t.Fatal(err)
	}
	load(nil)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	load(witness.ErrKeyFile)
}

func TestMemory(t *testing.T) {
	noncetest.Run(t, func(_ *testing.T, now func() time.Time) witness.NonceStore { return &memory{Now: now} })
}

// Exactly one of attestation and error, and only for what was signed.
func FuzzVerify(f *testing.F) {
	k, keys := newKey(f, "alice")
	text := sign(f, k, statement(time.Minute))
	f.Add(text)
	f.Add("")
	f.Add(strings.ReplaceAll(text, "/", "//"))
	f.Add(strings.Replace(text, "agent:", "agent:\x00", 1))
	f.Add("agentrun-witness-v1//////")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := keys.Verify(s, release, start, &memory{})
		if (err == nil) == (a == witness.Attestation{}) {
			t.Fatalf("%q: %+v, %v", s, a, err)
		}
		if err == nil && strings.Join(strings.Fields(s), "") != text {
			t.Fatalf("%q passed for %q", s, text)
		}
	})
}

func FuzzParseKeys(f *testing.F) {
	k, _ := newKey(f, "alice")
	f.Add([]byte(k.Verifier()))
	f.Add([]byte("# \n\n" + k.Verifier() + "\n" + k.Verifier()))
	f.Add([]byte(privateText(f, k)))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := witness.ParseKeys(b)
		if err != nil && len(keys.IDs()) > 0 {
			t.Fatalf("%q: %v with %v", b, keys.IDs(), err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	k, keys := newKey(b, "alice")
	text := sign(b, k, statement(time.Minute))
	for b.Loop() {
		if _, err := keys.Verify(text, release, start, &memory{}); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	operator, err := witness.NewKey("alice") // once, on her machine
	if err != nil {
		panic(err)
	}
	keys, err := witness.ParseKeys([]byte(operator.Verifier())) // the operators file of the host
	if err != nil {
		panic(err)
	}
	now := time.Now()
	text, err := operator.Sign(witness.Statement{
		Action: witness.ReleaseQuarantine, Subject: "agent:planner-1",
		Nonce: witness.NewNonce(), Expires: now.Add(witness.DefaultTTL),
	}, now)
	if err != nil {
		panic(err)
	}
	var used memory
	want := witness.Want{Action: witness.ReleaseQuarantine, Subject: "agent:planner-1"}
	for range 2 {
		_, err := keys.Verify(text, want, now, &used)
		fmt.Println(err == nil, errors.Is(err, witness.ErrNonceUsed))
	}
	// Output:
	// true false
	// false true
}

// memory is a NonceStore for tests and for one process: it doesn't outlive it, so it is not durable and not for the command line.
// The zero value forgets nothing; with Now set, what has expired by that clock. It may be used concurrently.
type memory struct {
	Now func() time.Time

	mu        sync.Mutex
	used      map[witness.Nonce]time.Time
	forgotten time.Time // no expiry up to here is known any more
}

// Use implements NonceStore but for the disk.
func (m *memory) Use(nonce witness.Nonce, expires time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked()
	if _, known := m.used[nonce]; known {
		return fmt.Errorf("nonce %s: %w", nonce, witness.ErrNonceUsed)
	}
	if !expires.After(m.forgotten) {
		return fmt.Errorf("nonce %s may have been forgotten, the clock went back: %w", nonce, witness.ErrNonceUsed)
	}
	if m.used == nil {
		m.used = map[witness.Nonce]time.Time{}
	}
	m.used[nonce] = expires
	return nil
}

func (m *memory) forgetLocked() {
	if m.Now == nil {
		return
	}
	now := m.Now()
	for nonce, expires := range m.used {
		if expires.After(now) {
			continue
		}
		delete(m.used, nonce)
		if expires.After(m.forgotten) {
			m.forgotten = expires
		}
	}
}
