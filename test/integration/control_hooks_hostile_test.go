// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hooked begins a run of root's whose agent writes a byte every 10 ms, with kill handlers of these names and
// shell commands.
func (p place) hooked(t *testing.T, name string, flags []string, handlers ...[2]string) (a *told, beat string) {
	t.Helper()
	at := filepath.Dir(p.run)
	ws := filepath.Join(at, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	config := "kill:\n  handlers:\n"
	for _, h := range handlers {
		script := write(t, filepath.Join(at, h[0]), "#!/bin/sh\ncd "+at+"\n"+h[1]+"\n", 0o755)
		limit := "5s" // of those that end by themselves, also under emulation
		if slices.Contains([]string{"floods", "stops", "forks"}, h[0]) {
			limit = "500ms"
		}
		config += fmt.Sprintf("  - {name: %s, command: [%s, one, \"two; three\"], timeout: %s}\n", h[0], script, limit)
	}
	write(t, filepath.Join(at, "config.yaml"), config, 0o600)
	c := p.at(prepare(t, opts{profile: "ring2", flags: append([]string{"--no-gateway", "--workspace", ws}, flags...)},
		"/bin/sh", "-c", "while :; do echo x >>beat; [ $((i=i+1)) = 3 ] && echo ready; sleep 0.01; done"))
	i := slices.Index(c.Args, "exec")
	c.Args = slices.Insert(c.Args, i, "--log-level", "debug", "--config", filepath.Join(at, "config.yaml"))
	return p.begin(name, c), filepath.Join(ws, "beat")
}

// H-21 (THREATS "supervisor", hostile handlers): handlers that hang, stop themselves, write without end, fork away and
// kill their own group end at their time; each gets one line of JSON whatever the kill's words are, and the
// agent doesn't move until it is dead.
func TestH21HostileHandlers(t *testing.T) {
	p := newPlace(t)
	at := filepath.Dir(p.run)
	sleep := fmt.Sprintf("sleep 999.%d", os.Getpid())
	p.must("agent", "score", "rogue", "0.7")
	a, beat := p.hooked(t, "noisy", []string{"--agent", "rogue"},
		[2]string{"first", "wc -c <ws/beat >before"},
		[2]string{"floods", "yes; yes >&2"},
		[2]string{"stops", "kill -STOP $$"},
		[2]string{"forks", "trap '' TERM; " + sleep + " & " + sleep + " & wait"},
		[2]string{"group", "kill -9 0"},
		[2]string{"says", "cat >about; env >env; printf '%s\\n' \"$@\" >args; ls -l /proc/self/fd >fds"},
		[2]string{"last", "wc -c <ws/beat >after"})
	for _, bad := range []string{"a\nb", "a\x1b[2J", "a\u202eb"} {
		if r := p.do("kill", "noisy", "--reason", bad); r.exit == 0 || !strings.Contains(r.stderr, "bad_request") {
			t.Errorf("--reason %q: exit %d\n%s", bad, r.exit, r.stderr)
		}
	}
	words := "x\",\"by\":\"uid:7\"} {\"id\":\"y `id` $(id) ; id"
	r := p.must("kill", "noisy", "--reason", words, "--json")
	if limit := time.Duration(slow * float64(20*time.Second)); r.wall > limit {
		t.Errorf("the kill took %v", r.wall)
	}
	a.finish(t).want(t, 137, "killed")
	if withProcess(sleep) {
		t.Error("what a handler forked lives on in its group")
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(at, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if read("before") != read("after") {
		t.Errorf("the agent wrote while the handlers ran: %s then %s bytes", read("before"), read("after"))
	}
	var about map[string]any
	said := read("about")
	if err := json.Unmarshal([]byte(said), &about); err != nil || strings.Count(said, "\n") != 1 || about["id"] == "y" || about["by"] == "uid:7" {
		t.Errorf("%v: one line of JSON that the words can't end: %q", err, said)
	}
	if got := read("args"); got != "one\ntwo; three\n" {
		t.Errorf("arguments %q, want those of the configuration", got)
	}
	if env := read("env"); strings.Contains(env, "rogue") || strings.Contains(env, "AGENTRUN") || strings.Contains(env, "HOME=") {
		t.Errorf("environment: %q", env)
	}
	if strings.ContainsAny(r.stderr+a.errOut.String(), "\x1b\u202e") || a.errOut.Len() > 1<<20 {
		t.Errorf("the log has %d bytes, or control characters", a.errOut.Len())
	}
	for _, e := range p.audit() {
		if e.Kind == "kill" && fmt.Sprint(e.Data["errors"]) != "[handler:floods handler:stops handler:forks handler:group]" {
			t.Errorf("on record: %v", e.Data["errors"])
		}
	}
	if _, err := os.Stat(beat); err != nil {
		t.Error(err)
	}
}

// M-5, H-21: a handler that kills its supervisor while the agent is frozen sets nobody free: the agent
// doesn't run again, and the next gc leaves nothing of it.
func TestM5HandlerKillsItsSupervisor(t *testing.T) {
	p := newPlace(t)
	a, beat := p.hooked(t, "noisy", nil, [2]string{"murders", "wc -c <ws/beat >before; kill -9 $PPID"})
	pid := a.seen().PID
	p.do("kill", "noisy") // nobody is left to answer
	_ = a.Wait()
	at := filepath.Dir(p.run)
	p.do("gc")
	eventually(t, 10*time.Second, "the agent is dead", func() bool { return unix.Kill(pid, 0) != nil })
	before, err := os.ReadFile(filepath.Join(at, "before"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(beat)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%d\n", st.Size()); got != string(before) {
		t.Errorf("the agent went on: %s bytes, then %s", before, got)
	}
	p.audit()
}
