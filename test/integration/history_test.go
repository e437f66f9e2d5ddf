// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type past struct {
	ID      string  `json:"id"`
	Agent   string  `json:"agent_id"`
	Session string  `json:"session_id"`
	Ring    int     `json:"ring"`
	State   string  `json:"state"`
	Exit    *int    `json:"exit_code"`
	Ended   *string `json:"ended_at"`
}

// H-27: whoever asks later which runs there were finds them, of every chain, and tells those that live from those that were cut off.
func TestH27History(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	if r := p.must("history", "--json"); strings.TrimSpace(r.stdout) != "[]" {
		t.Errorf("before the first run: %s", r.stdout)
	}
	p.must("session", "create", "s")
	p.must("session", "join", "s", "--agent", "a")
	p.must("exec", "--no-gateway", "--", "/bin/true")
	p.must("exec", "--no-gateway", "--agent", "a", "--session", "s", "--", "/bin/true")
	lost := p.agent("cut-off", opts{})
	lost.Process.Kill()
	_ = lost.Wait()
	live := p.agent("alive", opts{profile: "ring2", flags: []string{"--ring", "2"}})

	all := asked[[]past](p, "history")
	var got []string
	for _, r := range all {
		exit := -1
		if r.Exit != nil {
			exit = *r.Exit
		}
		got = append(got, fmt.Sprintf("%s/%s/%d/%s/%d", r.Agent, r.Session, r.Ring, r.State, exit))
	}
	if want := []string{"//3/exited/0", "a/s/3/exited/0", "//3/lost/-1", "//2/running/-1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if one := asked[[]past](p, "history", "--agent", "a"); len(one) != 1 || one[0].Agent != "a" {
		t.Errorf("of agent a: %v", one)
	}
	if one := asked[[]past](p, "history", "-n", "1"); len(one) != 1 || one[0].ID != all[3].ID {
		t.Errorf("the newest: %v", one)
	}
	if none := asked[[]past](p, "history", "--since", "2199-01-01T00:00:00Z"); len(none) != 0 {
		t.Errorf("of the future: %v", none)
	}
	live.quit()
	if r := p.do("history", "-n", "-1"); r.exit == 0 || !strings.Contains(r.stderr, "--lines") {
		t.Errorf("-n -1: exit %d\n%s", r.exit, r.stderr)
	}
}

// The log of a run's gateway says the ring that the run is in: it said 4 for ring 3 (issue Promises, 14).
func TestM18RunLogSaysTheRing(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	x := newExit(t)
	x.file("ask.py", `import urllib.request; urllib.request.urlopen("http://127.0.0.1:7600/internal/tools").read(); raise SystemExit(3)`)
	x.run(x.opts("ring3"), "python3", "ask.py").want(t, 3, "exited") // logs of runs that end well go
	var said []float64
	files, _ := filepath.Glob(filepath.Join(x.n.dir, "runs", "*"))
	for _, f := range files {
		for _, line := range lines(f) {
			var e map[string]any
			if json.Unmarshal([]byte(line), &e) == nil && e["msg"] == "gateway serves" {
				said = append(said, e["ring"].(float64))
			}
		}
	}
	if len(said) != 1 || said[0] != 3 {
		t.Errorf("the run logs say ring %v, want 3, once; files %v", said, files)
	}
}
