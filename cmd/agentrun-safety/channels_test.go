// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/safetyloop"
	"agentrun/telemetry"
)

var secret = safetyloop.Challenge{
	ID: "6f1d0000-0000-4000-8000-000000000000", Agent: "local/a", Kind: "verify", Hint: "rm -rf \x1b[2J/srv", Reason: "score 70",
	Created: time.Now(), Expires: time.Now().Add(time.Minute), Code: telemetry.NewPlaintext("code-that-nobody-else-sees"),
}

func keyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Repeat("k", hookMinKey)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// S-10: the code is in the signed body of the request, and in nothing else that is sent or said.
func TestS10WebhookHasTheCodeInItsBodyOnly(t *testing.T) {
	var got []byte
	var head string
	status := http.StatusNoContent
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		head = r.Method + " " + r.URL.String() + fmt.Sprint(r.Header)
		if want := "sha256=" + sign([]byte(strings.Repeat("k", hookMinKey)), r.Header.Get(hookTimeHeader), got); r.Header.Get(hookSignatureHeader) != want {
			t.Errorf("got signature %s, want %s", r.Header.Get(hookSignatureHeader), want)
		}
		if status == http.StatusFound {
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	h, err := newWebhook(server.URL+"/hook?k=v", keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Show(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	var body struct{ ID, Code, Hint string }
	if err := json.Unmarshal(got, &body); err != nil || body.Code != secret.Code.Reveal() || body.ID != secret.ID || body.Hint != secret.Hint {
		t.Errorf("got %s, %v", got, err)
	}
	if strings.Contains(head, secret.Code.Reveal()) {
		t.Errorf("the head has the code: %s", head)
	}
	for _, status = range []int{http.StatusInternalServerError, http.StatusFound} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := h.Show(ctx, secret)
		cancel()
		if err == nil || strings.Contains(err.Error(), secret.Code.Reveal()) || strings.Contains(err.Error(), "k=v") {
			t.Errorf("status %d: got %v, want an error without code or address", status, err)
		}
	}
}

func TestS10WebhookGoesNowhereElse(t *testing.T) {
	key := keyFile(t)
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte(strings.Repeat("k", hookMinKey)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"http://ops.example/x", "http://10.0.0.1/x", "http://localhost/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "https://", "nonsense", "https://user:pass%zz@x/"} {
		if _, err := newWebhook(address, key); err == nil || strings.Contains(err.Error(), "pass") {
			t.Errorf("%s: got %v, want a refusal", address, err)
		}
	}
	for _, k := range []string{"", open, "/nonexistent", "/dev/null"} {
		if _, err := newWebhook("https://ops.example/x", k); err == nil {
			t.Errorf("key %q was taken", k)
		}
	}
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	h, err := newWebhook("https://ops.example/x", key)
	if err != nil {
		t.Fatal(err)
	}
	if h.client.Transport.(*http.Transport).Proxy != nil {
		t.Error("a proxy of the environment would see codes")
	}
}

// pty gives a terminal's two ends.
func pty(t *testing.T) (master *os.File, name string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, fmt.Sprintf("/dev/pts/%d", n)
}

func TestS10TerminalShowsTheCodeAndObeysNoHint(t *testing.T) {
	master, name := pty(t)
	out, err := openTerminal(name, true)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := out.Show(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := master.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b[:n])
	if !strings.Contains(got, secret.Code.Reveal()) || !strings.Contains(got, "rm -rf ?[2J/srv") || strings.Contains(got, "\x1b") {
		t.Errorf("got %q", got)
	}
}

// Who sees the code beside a text must see that it isn't all of the text, whatever that says itself.
func TestS10TerminalTellsWhatIsLeftOut(t *testing.T) {
	text := strings.Repeat("a", 300) + "rm -rf /srv" + strings.Repeat("b", 300)
	if got := shown(text); strings.Contains(got, "rm") || !strings.Contains(got, "[11 characters are left out") {
		t.Errorf("got %q", got)
	}
	if got := shown(text[:600]); got != text[:600] {
		t.Errorf("got %q", got)
	}
}

func TestS10TerminalIsNotTheClients(t *testing.T) {
	_, name := pty(t)
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{name, "/dev/null", "/dev/tty", file, "/nonexistent"} {
		if out, err := openTerminal(path, true); err == nil {
			out.Close()
			t.Errorf("%s was taken", path)
		}
	}
	if err := os.Chmod(name, 0o620); err != nil {
		t.Fatal(err)
	}
	// The client's own: what it started us with.
	own, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	stdin, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Dup3(stdin, 0, 0); unix.Close(stdin) }()
	if err := unix.Dup3(int(own.Fd()), 0, 0); err != nil {
		t.Fatal(err)
	}
	if out, err := openTerminal(name, true); err == nil {
		out.Close()
		t.Error("the client's own terminal was taken")
	}
	if out, err := openTerminal(name, false); err != nil {
		t.Errorf("an operator's terminal that the server was started from: %v", err)
	} else {
		out.Close()
	}
}
