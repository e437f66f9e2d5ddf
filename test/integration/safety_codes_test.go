// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
)

// S-2: what EXECUTE asks for inside a sandbox waits for an operator, and neither the agent nor nobody confirms it; with confirm: policy
// the safety policy's patterns decide first.
func TestS2ExecuteInsideIsConfirmed(t *testing.T) {
	x := newExit(t)
	config := t.TempDir()
	write(t, filepath.Join(config, "agentrun", "profiles", "bypolicy.yaml"),
		"name: bypolicy\nextends: ring3\ndescription: A test.\nring: 3\nsafety: {mode: enforcing, confirm: policy, why: a test}\n", 0o644)
	a := x.cautiously("asks", "ring3", nil, "--safety", "enforcing")
	a.expect("value=CONFIRMATION_REQUIRED", `ask execute execute_agent {"element_name":"planner"}`)
	pending := asked[struct {
		Pending []struct {
			Token     string `json:"token"`
			Operation string `json:"operation"`
		} `json:"pending"`
	}](a.place, "challenges", "list").Pending
	if len(pending) != 1 || pending[0].Operation != "execute_agent" {
		t.Fatalf("got %+v, want one execute_agent that waits", pending)
	}
	token := pending[0].Token
	a.expect("value=PERMISSION_DENIED", `ask execute confirm_operation {"confirmation_token":"`+token+`"}`)
	again := `ask execute execute_agent {"element_name":"planner","confirmation_token":"` + token + `"}`
	a.expect("value=CONFIRMATION_REQUIRED", again)
	a.must("challenges", "confirm", token)
	a.expect("value=ok", again)
	a.expect("value=continue", "step calling+nobody")

	b := x.cautiously("policed", "bypolicy", []string{"XDG_CONFIG_HOME=" + config})
	b.expect("value=CONFIRMATION_REQUIRED", `ask execute execute_agent {"element_name":"planner"}`)
	b.expect("value=PERMISSION_DENIED", `ask execute execute_agent {"element_name":"drop_table"}`)
	b.expect("value=ok", `ask execute execute_agent {"element_name":"reader"}`)
	a.quit()
	b.quit()
}

// pseudoTerminal gives a terminal's two ends.
func pseudoTerminal(t *testing.T) (master *os.File, name string) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, fmt.Sprintf("/dev/pts/%d", n)
}

// S-10: the code of a sandbox's challenge reaches an operator's terminal and the signed webhook; the stopped run outlives its time
// limit as long as the code is good, and goes on by it.
func TestS10CodesOfSandboxesReachOperators(t *testing.T) {
	x := newExit(t)
	master, name := pseudoTerminal(t)
	key := strings.Repeat("k", 32)
	posted := make(chan string, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m := hmac.New(sha256.New, []byte(key))
		_, _ = fmt.Fprintf(m, "%s.%s", r.Header.Get("X-Agentrun-Timestamp"), body)
		if got, want := r.Header.Get("X-Agentrun-Signature"), "sha256="+hex.EncodeToString(m.Sum(nil)); got != want {
			t.Errorf("got signature %s, want %s", got, want)
		}
		var c struct{ ID, Code string }
		_ = json.Unmarshal(body, &c)
		posted <- c.ID + " " + c.Code
	}))
	defer hook.Close()
	config := t.TempDir()
	keyFile := write(t, filepath.Join(config, "key"), key, 0o600)
	write(t, filepath.Join(config, "agentrun", "config.yaml"),
		fmt.Sprintf("safety: {show_codes_on: %s, webhook: %s, webhook_key: %s}\n", name, hook.URL, keyFile), 0o600)
	const limit = 6 * time.Second
	began := time.Now()
	a := x.cautiously("coded", "ring3", []string{"XDG_CONFIG_HOME=" + config}, "--timeout", limit.String(), "--safety", "enforcing")
	a.tell("step drop_table+users")
	a.until(standing{"frozen", true})
	var id, code string
	select {
	case text := <-posted:
		id, code, _ = strings.Cut(text, " ")
	case <-time.After(hang()):
		t.Fatal("no code was posted")
	}
	screen := ""
	for buf := make([]byte, 4096); !strings.Contains(screen, code); {
		if err := master.SetReadDeadline(time.Now().Add(hang())); err != nil {
			t.Fatal(err)
		}
		n, err := master.Read(buf)
		if screen += string(buf[:n]); err != nil {
			t.Fatalf("the terminal has no code: %v\n%s", err, strings.ReplaceAll(screen, code, "…"))
		}
	}
	time.Sleep(time.Until(began.Add(limit + time.Second))) // the run's time is over by then
	a.until(standing{"frozen", true})
	a.must("challenges", "verify", id, code)
	if got := a.line(); got != "step drop_table+users: value=stop" {
		t.Errorf("the agent hears %q of its stop", got)
	}
	a.expect("value=continue", "step calling+on")
	a.quit()

	write(t, filepath.Join(config, "agentrun", "config.yaml"), "safety: {webhook: https://ops.example/codes}\n", 0o600)
	o := x.opts("ring3", "--safety", "enforcing")
	o.env = []string{"XDG_CONFIG_HOME=" + config}
	if r := x.run(o, "true"); r.exit != 125 || !strings.Contains(r.stderr, "webhook-key") {
		t.Errorf("a webhook without a key: exit %d\n%s", r.exit, r.stderr)
	}
}
