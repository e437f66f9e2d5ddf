// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// hookScript appends what it finds to a log: who it is and, of the agent, whether it lives and whether it goes on writing.
const hookScript = `#!/bin/sh
cd %q || exit 99
case $1 in
hangs) trap '' TERM; sleep 1000 & echo $$ $! >hung; echo hangs >>log; wait ;;
fails) echo fails >>log; exit 7 ;;
esac
cat >>about
read pid <pid
one=$(wc -c <ws/beat); sleep 0.05; two=$(wc -c <ws/beat)
state=dead; [ -d /proc/$pid ] && state=alive
moves=frozen; [ "$one" = "$two" ] || moves=runs
echo "$1 $state $moves" >>log
`

// killOutcome is of H-22's record what the hooks have to do with.
type killOutcome struct {
	Handlers      int  `json:"callbacks_executed"`
	Compensations int  `json:"compensations_executed"`
	Dead          bool `json:"processes_dead"`
	Errors        []struct {
		Stage, Name, Message string
	} `json:"errors"`
}

// H-21: what an operator configured runs in its order while the agent is frozen, one that hangs and one that fails among it; then
// the agent is dead, and the record says so. By a supervisor of its own and by a daemon.
func TestH21ConfiguredHooks(t *testing.T) {
	for _, by := range []string{"exec", "daemon"} {
		t.Run(by, func(t *testing.T) {
			p := newPlace(t)
			at := filepath.Dir(p.run)
			ws := filepath.Join(at, "ws")
			if err := os.Mkdir(ws, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(at, "hook"), fmt.Sprintf(hookScript, at), 0o755)
			hook := func(name, timeout string) string {
				return fmt.Sprintf("  - {name: %s, command: [%s/hook, %s]%s}\n", name, at, name, timeout)
			}
			write(t, filepath.Join(at, "config.yaml"), "kill:\n  handlers:\n"+hook("first", "")+hook("hangs", ", timeout: 400ms")+hook("fails", "")+
				"  compensations:\n"+hook("undo", "")+fmt.Sprintf("  - {name: last, command: [/bin/sh, -c, 'exec ls -l /proc/self/fd >%s/fds']}\n", at), 0o600)
			var n *daemonNode
			if by == "daemon" {
				n = &daemonNode{run: p.run, state: p.state, log: filepath.Join(at, "daemon.log")}
				n.start(t)
			}
			p.must("agent", "score", "rogue", "0.7")
			c := p.at(prepare(t, opts{profile: "ring2", flags: []string{"--no-gateway", "--agent", "rogue", "--workspace", ws}},
				"/bin/sh", "-c", "while :; do echo x >>beat; [ $((i=i+1)) = 3 ] && echo ready; sleep 0.01; done"))
			c.Args = slices.Insert(c.Args, slices.Index(c.Args, "exec"), "--config", filepath.Join(at, "config.yaml"))
			a := p.begin("noisy", c)
			seen := a.seen()
			if n != nil && seen.Supervisor != n.Process.Pid {
				t.Fatalf("supervised by %d, want the daemon, %d", seen.Supervisor, n.Process.Pid)
			}
			write(t, filepath.Join(at, "pid"), strconv.Itoa(seen.PID)+"\n", 0o644)

			r := p.must("kill", "noisy", "--reason", "seen enough", "--json")
			if r.wall > hang()/2 {
				t.Errorf("a hook that sleeps for 1000s held the kill up for %v", r.wall)
			}
			var list []struct {
				Result killOutcome `json:"result"`
			}
			if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || len(list) != 1 {
				t.Fatalf("%v: %s", err, r.stdout)
			}
			got := list[0].Result
			if !got.Dead || got.Handlers != 3 || got.Compensations != 2 || len(got.Errors) != 2 || got.Errors[0].Name != "hangs" || !strings.Contains(got.Errors[0].Message, "400ms") ||
				got.Errors[1].Name != "fails" || got.Errors[1].Message != "exit code 7" || got.Errors[1].Stage != "handler" {
				t.Errorf("got %+v", got)
			}
			a.finish(t).want(t, 137, "killed")
			want := "first alive frozen,hangs,fails,undo alive frozen"
			if got := strings.Join(lines(filepath.Join(at, "log")), ","); strings.Trim(got, ",") != want {
				t.Errorf("got %s, want %s", got, want)
			}
			hung, err := os.ReadFile(filepath.Join(at, "hung"))
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range strings.Fields(string(hung)) {
				if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
					t.Errorf("the hook that hung lives on: %s", stat)
				}
			}
			var about map[string]any
			if err := json.Unmarshal([]byte(lines(filepath.Join(at, "about"))[0]), &about); err != nil {
				t.Fatal(err)
			}
			if who, _ := about["by"].(string); !strings.Contains(who, "uid:0") {
				t.Errorf("by %q, want uid:0", who)
			}
			delete(about, "by")
			if d := cmp.Diff(map[string]any{"id": seen.ID, "name": "noisy", "agent": "rogue", "session": "", "reason": "manual", "action": "", "detail": "seen enough", "ring": 2.0}, about); d != "" {
				t.Error(d)
			}
			var fds []string
			for _, line := range lines(filepath.Join(at, "fds")) {
				where, to, ok := strings.Cut(line, " -> ")
				if f := strings.Fields(where); ok && !strings.HasPrefix(to, "/proc/") { // ls's own
					fds = append(fds, f[len(f)-1])
				}
			}
			if !slices.Equal(fds, []string{"0", "1", "2"}) {
				t.Errorf("a hook's descriptors: %v", lines(filepath.Join(at, "fds")))
			}
			var kills []map[string]any
			for _, e := range p.audit() {
				if e.Kind == "kill" {
					kills = append(kills, e.Data)
				}
			}
			if len(kills) != 1 || fmt.Sprint(kills[0]["errors"]) != "[handler:hangs handler:fails]" || fmt.Sprint(kills[0]["callbacks_executed"]) != "3" || fmt.Sprint(kills[0]["compensations_executed"]) != "2" {
				t.Errorf("on record: %v", kills)
			}
			if by == "exec" {
				p.refusesHooks(at, ws)
			}
		})
	}
}

// refusesHooks tries configurations that would let an agent choose what runs on the host.
func (p place) refusesHooks(at, ws string) {
	p.t.Helper()
	write(p.t, filepath.Join(ws, "hook"), "#!/bin/sh\n", 0o755)
	write(p.t, filepath.Join(at, "open"), "#!/bin/sh\n", 0o777)
	if err := os.Chmod(filepath.Join(at, "open"), 0o777); err != nil {
		p.t.Fatal(err)
	}
	config := filepath.Join(at, "bad.yaml")
	for _, tt := range []struct{ ring, command, why string }{
		{"2", ws + "/hook", "kill.handlers[0].command[0]"},
		{"3", "/bin/sh, " + ws + "/hook", "kill.handlers[0].command[1]"}, // an elevation would open it
		{"3", at + "/open", "kill.handlers[0].command"},
	} {
		write(p.t, config, "kill:\n  handlers:\n  - {name: x, command: ["+tt.command+"]}\n", 0o600)
		r := p.do("--config", config, "exec", "--ring", tt.ring, "--no-gateway", "--workspace", ws, "--", "/bin/true")
		if r.exit != 125 || !strings.Contains(r.stderr, config+": "+tt.why+": ") || !strings.Contains(r.stderr, "hint: ") {
			p.t.Errorf("%s: exit %d, want a refusal that names %s and a way out:\n%s", tt.command, r.exit, tt.why, r.stderr)
		}
	}
	eventually(p.t, 10*time.Second, "nothing was started", func() bool { return len(p.list()) == 0 })
}
