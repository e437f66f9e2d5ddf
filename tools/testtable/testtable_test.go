// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stream writes events in a short notation, one a word: "run A", "skip A because",
// "pass ." for the package itself.
func stream(pkg string, words ...string) string {
	var b strings.Builder
	for _, w := range words {
		action, rest, _ := strings.Cut(w, " ")
		test, reason, _ := strings.Cut(rest, " ")
		if test == "." {
			test = ""
		}
		if action == "skip" && reason != "" {
			fmt.Fprintf(&b, `{"Action":"output","Package":%q,"Test":%q,"Output":"    a_test.go:3: %s\n"}`+"\n", pkg, test, reason)
		}
		fmt.Fprintf(&b, `{"Action":%q,"Package":%q,"Test":%q}`+"\n", action, pkg, test)
	}
	return b.String()
}

func report(t *testing.T, mustRun bool, steps []string, streams map[string][]string) (string, error) {
	t.Helper()
	table := newTable()
	for _, platform := range []string{"host", "vm"} {
		for _, s := range streams[platform] {
			if err := table.read(platform, strings.NewReader(s)); err != nil {
				t.Fatalf("read %s: %v", platform, err)
			}
		}
	}
	var out bytes.Buffer
	err := table.print(&out, mustRun, steps)
	return out.String(), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestReport(t *testing.T) {
	const p = integration
	for _, tc := range []struct {
		name    string
		mustRun bool
		steps   []string
		host    []string
		vm      []string
		last    string
		fails   bool
		has     []string
	}{
		{
			name: "a test that ran somewhere is not skipped", mustRun: true,
			host: []string{stream(p, "run A", "skip A need: cgroup v2", "pass .")},
			vm:   []string{stream(p, "run A", "pass A", "pass .")},
			last: "1 passed, 0 failed, 0 skipped",
			has:  []string{"host: cgroup v2"},
		},
		{
			name: "skipped everywhere is told with both reasons",
			host: []string{stream(p, "run A", "skip A need: one", "run B", "pass B", "pass .")},
			vm:   []string{stream(p, "run A", "skip A need: two", "run B", "pass B", "pass .")},
			last: "1 passed, 0 failed, 1 skipped",
			has:  []string{"host: one; vm: two"},
		},
		{
			name: "skipped everywhere fails when all must run", mustRun: true,
			host: []string{stream(p, "run A", "skip A need: one", "run B", "pass B", "pass .")},
			vm:   []string{stream(p, "run A", "skip A need: two", "run B", "pass B", "pass .")},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
			has: []string{"never ran on any platform: A: host: one; vm: two"},
		},
		{
			name: "a failure on one platform is a failure",
			host: []string{stream(p, "run A", "pass A", "pass .")},
			vm:   []string{stream(p, "run A", "fail A", "fail .")},
			last: "0 passed, 1 failed, 0 skipped", fails: true,
			has: []string{"failed: A, host: ran, vm: FAILED"},
		},
		{
			name: "a test that never ended is a failure",
			host: []string{stream(p, "run A", "pass A", "run B", "fail .")},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
			has: []string{"failed: B, host: did not end"},
		},
		{
			name: "a package that fails after its tests is a failure",
			vm:   []string{stream(p, "run A", "pass A", "pass .", "fail .")},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
			has: []string{"test/integration on vm: FAILED, and no single test did"},
		},
		{
			name: "a stream cut short between tests is a failure",
			host: []string{stream(p, "start .", "run A", "pass A")},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
		},
		{
			name: "a package that does not build is a failure",
			host: []string{stream(p, "run A", "pass A", "pass .") + `{"ImportPath":"agentrun/x","Action":"build-fail"}` + "\n"},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
		},
		{
			name: "subtests count, their parent does not",
			host: []string{stream(p, "run A", "run A/x", "pass A/x", "run A/y", "skip A/y need: z", "pass A", "pass .")},
			last: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "subtests unknown to a platform that skipped the parent", mustRun: true,
			host: []string{stream(p, "run A", "skip A need: cgroup v2", "pass .")},
			vm:   []string{stream(p, "run A", "run A/x", "pass A/x", "pass A", "pass .")},
			last: "1 passed, 0 failed, 0 skipped",
			has:  []string{"A/x", "skipped", "host: cgroup v2"},
		},
		{
			name: "subtests that just ran share a line",
			host: []string{stream(p, "run A", "run A/x", "pass A/x", "run A/y", "pass A/y", "run A/z", "skip A/z need: q", "pass A", "pass .")},
			last: "2 passed, 0 failed, 1 skipped",
			has:  []string{"A (2)", "A/z"},
		},
		{
			name: "a parent's own failure does not hide behind its subtests",
			host: []string{stream(p, "run A", "run A/x", "pass A/x", "fail A", "fail .")},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
		},
		{
			name: "a step outside go test", steps: []string{"gofmt"},
			host: []string{stream(p, "run A", "pass A", "pass .")},
			last: "1 passed, 1 failed, 0 skipped", fails: true,
			has: []string{"step failed: gofmt"},
		},
		{
			name: "nothing ran",
			host: []string{stream(p, "pass .")},
			last: "0 passed, 0 failed, 0 skipped", fails: true,
		},
		{
			name: "benchmarks are not tests",
			host: []string{stream(p, "run A", "pass A", "run BenchmarkX", "output BenchmarkX", "pass .")},
			last: "1 passed, 0 failed, 0 skipped",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := report(t, tc.mustRun, tc.steps, map[string][]string{"host": tc.host, "vm": tc.vm})
			if errors.Is(err, errFailed) != tc.fails {
				t.Errorf("error %v, want failure %v", err, tc.fails)
			}
			if lastLine(got) != tc.last {
				t.Errorf("last line %q, want %q in\n%s", lastLine(got), tc.last, got)
			}
			for _, h := range tc.has {
				if !strings.Contains(got, h) {
					t.Errorf("no %q in\n%s", h, got)
				}
			}
		})
	}
}

func TestEmptyStreamIsAnError(t *testing.T) {
	if err := newTable().read("vm", strings.NewReader("no event\n")); err == nil {
		t.Error("a stream without events was accepted")
	}
}

func TestWatchShowsOnlyFailures(t *testing.T) {
	in := `{"Action":"output","Package":"p","Test":"A","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"B","Output":"loud\n"}
{"Action":"fail","Package":"p","Test":"B"}
plain text of the go command
{"Action":"fail","Package":"p","Elapsed":1.5}
`
	var file, out bytes.Buffer
	if err := watch(strings.NewReader(in), &file, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("loud\nplain text of the go command\nfail  p  1.5s\n", out.String()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	if want := strings.Count(in, "{"); strings.Count(file.String(), "\n") != want {
		t.Errorf("kept %d events, want %d", strings.Count(file.String(), "\n"), want)
	}
}

func TestGuest(t *testing.T) {
	for _, tc := range []struct {
		name, in, last string
	}{
		{
			"passes", guestBegin + "p\n\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n\x16PASS\n" + guestEnd + "0\n",
			"1 passed, 0 failed, 0 skipped",
		},
		{
			"exit code without a failed test", guestBegin + "p\n\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n\x16PASS\nleak" + guestEnd + "1\n",
			"1 passed, 1 failed, 0 skipped",
		},
		{
			"machine ends in the middle", guestBegin + "p\n\x16=== RUN   TestA\n",
			"0 passed, 1 failed, 0 skipped",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var file, out bytes.Buffer
			if err := guest(strings.NewReader(tc.in), &file, &out); err != nil {
				t.Fatal(err)
			}
			got, _ := report(t, false, nil, map[string][]string{"vm": {file.String()}})
			if lastLine(got) != tc.last {
				t.Errorf("last line %q, want %q; events:\n%s", lastLine(got), tc.last, file.String())
			}
		})
	}
}

func TestCommandLineIsChecked(t *testing.T) {
	for _, args := range [][]string{nil, {"nonsense"}, {"watch"}, {"reap"}, {"report", "no-equals-sign"}} {
		if err := run(args, strings.NewReader(""), &bytes.Buffer{}); err == nil || errors.Is(err, errFailed) {
			t.Errorf("run(%q) = %v, want a misuse error", args, err)
		}
	}
}

// A second try counts for the tests that pass in it, with the package around them, and is told.
func TestSecondTry(t *testing.T) {
	const p, raced = "agentrun/x", `{"Action":"output","Package":"agentrun/x","Test":"B","Output":"    testing.go:1: race detected during execution of test\n"}` + "\n"
	first := stream(p, "start .", "run A", "pass A", "run B", "run B/s", "fail B/s", "fail B", "run C", "fail C", "fail .")
	for name, tc := range map[string]struct{ first, want string }{
		"two failed":         {first, "agentrun/x ^(B|C)$\n"},
		"none failed":        {stream(p, "start .", "run A", "pass A", "pass ."), ""},
		"a race":             {raced + first, ""},
		"left behind":        {`{"Action":"output","Package":"agentrun/x","Output":"--- FAIL: leak check (M-5): left behind by the whole run:\n"}` + "\n" + first, ""},
		"one without an end": {stream(p, "start .", "run A", "run B", "fail B", "fail ."), ""},
		"too many":           {stream(p, "start .", "fail A", "fail B", "fail C", "fail D", "fail ."), ""},
		"not built":          {`{"Action":"build-fail","ImportPath":"agentrun/y"}` + "\n" + first, ""},
	} {
		var out bytes.Buffer
		if err := again(strings.NewReader(tc.first), &out); err != nil || out.String() != tc.want {
			t.Errorf("%s: %q, %v, want %q", name, out.String(), err, tc.want)
		}
	}
	for name, tc := range map[string]struct{ second, last, note string }{
		"both pass":         {stream(p, "start .", "run B", "run B/s", "pass B/s", "pass B", "run C", "pass C", "pass ."), "3 passed, 0 failed, 0 skipped", "passed at the second try: x.B on host\npassed at the second try: x.C on host\n"},
		"one fails again":   {stream(p, "start .", "run B", "run B/s", "pass B/s", "pass B", "run C", "fail C", "fail ."), "1 passed, 2 failed, 0 skipped", ""},
		"a leak at its end": {stream(p, "start .", "run B", "pass B", "run C", "pass C", "fail ."), "1 passed, 2 failed, 0 skipped", ""},
		"skipped now":       {stream(p, "start .", "skip B", "pass ."), "1 passed, 2 failed, 0 skipped", ""},
	} {
		table := newTable()
		for of, text := range map[string]string{"host": first} {
			platform, read := table.reader(of)
			if err := read(platform, strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
		platform, read := table.reader("again:host")
		if err := read(platform, strings.NewReader(tc.second)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := table.print(&out, true, nil)
		if lastLine(out.String()) != tc.last || !strings.Contains(out.String(), tc.note) || (err == nil) != strings.Contains(tc.last, " 0 failed") {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

// What a command's child leaves behind is gone by the time that a later one asks, whatever pid 1 does; the command's exit code stays.
func TestReap(t *testing.T) {
	if os.Getenv("TESTTABLE_REAPS") != "" {
		os.Args = slices.Delete(os.Args, 1, 3)
		main()
		return
	}
	script := `orphan=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); i=0
		while [ -e /proc/$orphan ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
		[ ! -e /proc/$orphan ] && exit 7`
	for name, tt := range map[string]struct {
		command []string
		want    int
	}{
		"an orphan": {[]string{"sh", "-c", script}, 7},
		"a signal":  {[]string{"sh", "-c", "kill -9 $$"}, 137},
		"success":   {[]string{"true"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestReap$", "--", "reap"}, tt.command...)...)
			cmd.Env = append(os.Environ(), "TESTTABLE_REAPS=1")
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.want {
				t.Errorf("exit %d, want %d\n%s", got, tt.want, out)
			}
		})
	}
}
