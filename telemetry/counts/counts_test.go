// SPDX-License-Identifier: Apache-2.0

package counts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fresh is what another process sees of a node: it has mapped nothing yet.
func fresh(dir string) *File { return &File{path: filepath.Join(dir, fileName)} }

func told(t testing.TB, dir string, gauges ...Gauge) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, dir, gauges...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func want(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, "\n"+l+"\n") {
			t.Errorf("no %s in\n%s", l, text)
		}
	}
}

func everything(f *File, word string) {
	f.RunStarted(3)
	f.RunEnded(3, word, word, 2*time.Second)
	f.Launched(7 * time.Millisecond)
	f.RunRefused(word)
	f.Collected(2)
	f.Killed(word)
	f.Breached(word)
	f.Called(word, word, true, 3)
	f.Called(word, word, false, 4)
	f.Tokens(10, 20)
	f.Cost(1_500_000)
	f.Taken(true)
	f.Waited(0)
}

func TestM20CountersAreTold(t *testing.T) {
	dir := t.TempDir()
	if text := told(t, dir, Gauge{"sandboxes_live", "Now.", 2}); text !=
		"# HELP agentrun_sandboxes_live Now.\n# TYPE agentrun_sandboxes_live gauge\nagentrun_sandboxes_live 2\n" {
		t.Errorf("of a node that has counted nothing: %s", text)
	}
	f := fresh(dir)
	f.RunEnded(2, "killed", "manual", 2*time.Second)
	everything(f, "nobody's")
	want(t, told(t, dir),
		`agentrun_runs_started_total{ring="3"} 1`,
		`agentrun_runs_total{ring="2",state="killed",cause="manual"} 1`,
		`agentrun_runs_total{ring="3",state="other",cause="other"} 1`,
		"# TYPE agentrun_run_seconds histogram",
		`agentrun_run_seconds_bucket{le="1"} 0`, `agentrun_run_seconds_bucket{le="5"} 2`, `agentrun_run_seconds_bucket{le="+Inf"} 2`,
		"agentrun_run_seconds_sum 4", "agentrun_run_seconds_count 2", "agentrun_start_seconds_sum 0.007",
		`agentrun_calls_total{kind="other",code="other"} 3`, `agentrun_denials_total{kind="other",code="other"} 4`,
		`agentrun_tokens_total{direction="prompt"} 10`, `agentrun_tokens_total{direction="completion"} 20`,
		"agentrun_cost_total 1.5", "agentrun_crashes_collected_total 2", `agentrun_pool_taken_total{from="ready"} 1`,
	)
	var none *File
	everything(none, "ok")
	if err := errors.Join(none.Problem(), f.Problem()); err != nil {
		t.Error(err)
	}
}

// Whatever an agent, an upstream or a gateway that has fallen calls things, there are no more series, and no words of theirs.
func TestM20SeriesAreBounded(t *testing.T) {
	dir := t.TempDir()
	f := fresh(dir)
	everything(f, "unknown")
	before := strings.Count(told(t, dir), "\n")
	for i := range 2000 {
		everything(f, fmt.Sprintf("secret-%d\"} 1\n# HELP", i))
		f.RunStarted(i - 1000)
	}
	text := told(t, dir)
	if got := strings.Count(text, "\n"); got > before+3 || strings.Contains(text, "secret") {
		t.Errorf("%d lines, %d before", got, before)
	}
	for i := range 2 * slots { // a version with more series than there is room for
		f.add(fmt.Sprintf("x_%d", i), 1)
	}
	f.add(strings.Repeat("y", slotSize), 1)
	everything(fresh(dir), "unknown")
	want(t, told(t, dir), fmt.Sprintf("agentrun_series_lost_total %d", 2*slots+1-(slots-strings.Count(text, "\nagentrun_"))))
}

// Processes that come and go, and make the same series at once, count together.
func TestM20CountersAreShared(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f := fresh(dir)
			for range 1000 {
				f.Killed("manual")
				f.RunEnded(1, "exited", "ok", 0)
			}
		})
	}
	all.Wait()
	text := told(t, dir)
	want(t, text, `agentrun_kills_total{reason="manual"} 8000`, "agentrun_run_seconds_count 8000")
	if n := strings.Count(text, "\nagentrun_kills_total"); n != 1 {
		t.Errorf("%d lines for one series:\n%s", n, text)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What a process counted stays when it is killed.
func TestM20CountersSurviveSIGKILL(t *testing.T) {
	const folder = "AGENTRUN_TEST_COUNTS"
	if dir := os.Getenv(folder); dir != "" {
		At(dir).Breached("high")
		p, _ := os.FindProcess(os.Getpid())
		_ = p.Kill()
		select {}
	}
	dir := t.TempDir()
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestM20CountersSurviveSIGKILL$")
		cmd.Env = append(os.Environ(), folder+"="+dir)
		if err := cmd.Run(); err == nil {
			t.Fatal("it wasn't killed")
		}
	}
	want(t, told(t, dir), `agentrun_breaches_total{severity="high"} 3`)
}

func TestM20BadFileIsTold(t *testing.T) {
	for name, text := range map[string]string{"short": "x", "another": strings.Repeat("x", fileSize)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f := fresh(dir)
		everything(f, "ok")
		if err := f.Problem(); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: got %v", name, err)
		}
		if err := Write(&bytes.Buffer{}, dir); err == nil {
			t.Errorf("%s: it was told", name)
		}
	}
	// A file that is cut under a process that has mapped it ends no process.
	dir := t.TempDir()
	cut := fresh(dir)
	everything(cut, "ok")
	if err := os.Truncate(cut.path, 0); err != nil {
		t.Fatal(err)
	}
	everything(cut, "ok")
	if cut.Problem() == nil {
		t.Error("nothing is said of a file that was cut")
	}
	f := fresh(filepath.Join(t.TempDir(), "none"))
	everything(f, "ok")
	if f.Problem() != nil {
		t.Errorf("without a folder, on a node where nothing has run: %v", f.Problem())
	}
	if err := os.Mkdir(filepath.Dir(f.path), 0o700); err != nil {
		t.Fatal(err)
	}
	if everything(f, "ok"); f.Problem() != nil || Write(&bytes.Buffer{}, filepath.Dir(f.path)) != nil {
		t.Errorf("when it is there: %v", f.Problem())
	}
}

func BenchmarkKilled(b *testing.B) {
	f := fresh(b.TempDir())
	for b.Loop() {
		f.Killed("manual")
	}
}

// What the dashboard and the alerts ask for is what a node tells; else they would stay empty, and silent.
func TestM20DashboardAndAlertsNameWhatThereIs(t *testing.T) {
	// Of the daemon, beside the counters; test/integration scrapes them.
	have := []string{"agentrun_sandboxes_live", "agentrun_daemon_runs", "agentrun_queue_waiting", "agentrun_pool_ready"}
	for _, f := range families {
		have = append(have, namespace+f.name)
	}
	for _, name := range []string{"dashboard.json", "alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../packaging/metrics", name))
		if err != nil {
			t.Fatal(err)
		}
		asked := regexp.MustCompile(`agentrun_[a-z_]+`).FindAllString(string(text), -1)
		for _, metric := range asked {
			if !slices.Contains(have, namespace+familyOf(strings.TrimPrefix(metric, namespace))) {
				t.Errorf("%s asks for %s, which no node has", name, metric)
			}
		}
		if len(asked) < 8 {
			t.Errorf("%s asks for %d metrics only", name, len(asked))
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(text) {
			t.Errorf("%s is no JSON", name)
		}
	}
	docs, err := os.ReadFile("../../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, metric := range have {
		if !strings.Contains(string(docs), "`"+strings.TrimPrefix(metric, namespace)+"`") {
			t.Errorf("docs/telemetry.md doesn't explain %s", metric)
		}
	}
}
