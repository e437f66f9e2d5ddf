// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	exittest "agentrun/test/exit"
)

// One account of numbers for the node (M-20): runs of the daemon, runs alone, and runs whose supervisor was killed.

// numbers are what a scrape says, by series.
type numbers map[string]float64

var seriesLine = regexp.MustCompile(`(?m)^(agentrun_\S+) (\S+)$`)

func readNumbers(t *testing.T, text string) numbers {
	t.Helper()
	n := numbers{}
	for _, m := range seriesLine.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatalf("%s: %v", m[0], err)
		}
		n[m[1]] = v
	}
	return n
}

func (n numbers) want(t *testing.T, want numbers) {
	t.Helper()
	for series, v := range want {
		if n[series] != v {
			t.Errorf("%s: got %v, want %v", series, n[series], v)
		}
	}
	if t.Failed() {
		t.Logf("%v", n)
	}
}

func get(t *testing.T, url string, status int) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s: %v %v, want %d\n%s", url, resp.Status, err, status, b)
	}
	return string(b)
}

func TestM20NodeMetrics(t *testing.T) {
	d := startDaemon(t, "--metrics-addr", "127.0.0.1:0", "--pool-max", "0")
	log, err := os.ReadFile(d.log)
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`msg=metrics address=(\S+)`).FindSubmatch(log)
	if address == nil {
		t.Fatalf("no address of metrics in %s", log)
	}
	url := "http://" + string(address[1]) + "/metrics"
	p := place{t, d.run, d.state}

	d.exec(t, opts{}, "/probe", "exit", "0").want(t, 0, "exited")
	d.exec(t, opts{}, "/probe", "exit", "3").want(t, 3, "exited")
	d.exec(t, opts{profile: "ring2", flags: []string{"--timeout", "300ms"}}, "/probe", "sleep", "60").want(t, 124, "timeout")
	if r := d.exec(t, opts{flags: []string{"--timeout", "301s"}}, "/probe", "ok"); r.exit != 125 {
		t.Errorf("got exit %d, want the limit refused", r.exit)
	}
	d.exec(t, opts{}, "/probe", "raise", "11").want(t, 139, "signaled")
	d.exec(t, opts{env: []string{"AGENTRUN_NO_DAEMON=1"}}, "/probe", "exit", "0").want(t, 0, "exited") // alone

	victim := d.prepare(t, opts{flags: []string{"--name", "victim"}}, "/usr/bin/python3", "-c", "import time; print('up', flush=True); time.sleep(60)")
	victim.startUntil(t, "up")
	during := readNumbers(t, get(t, url, 200))
	during.want(t, numbers{"agentrun_daemon_runs": 1, "agentrun_sandboxes_live": 1, "agentrun_queue_waiting": 0})
	p.must("kill", "victim", "--reason", "manual")
	victim.finish(t).want(t, 137, "killed")

	// A supervisor that is killed has told the start; what it counted stays, and who cleans up after it says so.
	lost := d.prepare(t, opts{env: []string{"AGENTRUN_NO_DAEMON=1"}}, "/usr/bin/python3", "-c", "import time; print('up', flush=True); time.sleep(60)")
	lost.startUntil(t, "up")
	if err := lost.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = lost.Wait()
	eventually(t, 10*time.Second, "the killed supervisor's run is cleaned up after", func() bool {
		p.must("gc")
		return readNumbers(t, p.must("metrics").stdout)["agentrun_crashes_collected_total"] == 1
	})
	text := get(t, url, 200)
	readNumbers(t, text).want(t, numbers{
		`agentrun_runs_started_total{ring="3"}`:                            6,
		`agentrun_runs_started_total{ring="2"}`:                            1,
		`agentrun_runs_total{ring="3",state="exited",cause="ok"}`:          2,
		`agentrun_runs_total{ring="3",state="exited",cause="error"}`:       1,
		`agentrun_runs_total{ring="3",state="signaled",cause="signal"}`:    1,
		`agentrun_runs_total{ring="3",state="killed",cause="manual"}`:      1,
		`agentrun_runs_total{ring="2",state="timeout",cause="wall_clock"}`: 1,
		`agentrun_run_seconds_count`:                                       6, `agentrun_start_seconds_count`: 7, `agentrun_start_seconds_bucket{le="+Inf"}`: 7,
		`agentrun_runs_refused_total{code="invalid"}`: 1,
		`agentrun_kills_total{reason="manual"}`:       1,
		`agentrun_pool_taken_total{from="built"}`:     5,
		`agentrun_queue_seconds_count`:                5,
		`agentrun_sandboxes_live`:                     0,
		`agentrun_daemon_runs`:                        0,
	})
	get(t, strings.TrimSuffix(url, "metrics"), 404)

	// The same without a daemon, into a file.
	d.drain(t)
	file := filepath.Join(t.TempDir(), "agentrun.prom")
	p.must("metrics", "--textfile", file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	readNumbers(t, string(whole)).want(t, numbers{`agentrun_runs_started_total{ring="3"}`: 6, "agentrun_sandboxes_live": 0})
}

// Any address but loopback needs its own word.
func TestM20NodeMetricsStayOnThisHost(t *testing.T) {
	p := newPlace(t)
	r := p.do("serve", "--metrics-addr", "0.0.0.0:0")
	if r.exit != 125 || !strings.Contains(r.stderr, "not a loopback address") || !strings.Contains(r.stderr, "metrics_anywhere") {
		t.Errorf("exit %d, want a refusal that names the way out\n%s", r.exit, r.stderr)
	}
}

// Tokens are counted by direction, calls by what came of them, and a tool's name is no label.
func TestM20NodeMetricsOfCalls(t *testing.T) {
	x := newExit(t)
	x.host("model.test", exittest.Model(x.secret))
	x.settings.model("http://model.test/v1", 1, "plain")
	_, r := x.raw(x.opts("ring2"),
		exchange{Name: "chat", To: toolsAt, Send: chat("plain", false)},
		exchange{Name: "math", To: toolsAt, Send: post("/internal/tools/math", math42)},
		exchange{Name: "made up", To: toolsAt, Send: post("/internal/tools/made-up-name", `{}`)})
	r.want(t, 0, "exited")
	text := x.n.must("metrics").stdout
	n := readNumbers(t, text)
	n.want(t, numbers{
		`agentrun_calls_total{kind="llm",code="ok"}`:              1,
		`agentrun_calls_total{kind="tool",code="ok"}`:             1,
		`agentrun_denials_total{kind="tool",code="tool_unknown"}`: 1,
	})
	for _, direction := range []string{"prompt", "completion"} {
		if n[`agentrun_tokens_total{direction="`+direction+`"}`] < 1 {
			t.Errorf("no %s tokens in\n%s", direction, text)
		}
	}
	if strings.Contains(text, "made-up") {
		t.Errorf("what the agent made up is in\n%s", text)
	}
}
