// SPDX-License-Identifier: Apache-2.0

//go:build agents

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	exittest "agentrun/test/exit"
)

// realAgent is one of the six, as `make test-agents` has installed it, with what makes it do a task without a person.
type realAgent struct {
	name, key, provider string
	print               []string // arguments before the task
	screen, resume      []string // of its screen; what goes on with the last session; nil: not tried
	ready               string   // that it shows when it has one
}

var realAgents = []realAgent{
	{"claude", "ANTHROPIC_API_KEY", "api.anthropic.com", []string{"--dangerously-skip-permissions", "-p"}, []string{"--allowed-tools", "Bash"}, []string{"--continue"}, "shortcuts"},
	{"codex", "OPENAI_API_KEY", "api.openai.com", []string{"exec", "--skip-git-repo-check", "-m", "gpt-5"}, nil, nil, ""},
	{"opencode", "ANTHROPIC_API_KEY", "api.anthropic.com", []string{"run", "-m", "anthropic/claude-sonnet-4-5"}, []string{"-m", "anthropic/claude-sonnet-4-5"}, []string{"--continue"}, "Ask"},
	{"gemini", "GEMINI_API_KEY", "generativelanguage.googleapis.com", []string{"--yolo", "-m", "gemini-2.5-pro", "-p"}, nil, nil, ""},
	{"qwen", "DASHSCOPE_API_KEY", "dashscope.aliyuncs.com", []string{"--yolo", "-p"}, nil, nil, ""},
	{"pi", "ANTHROPIC_API_KEY", "api.anthropic.com", []string{"--provider", "anthropic", "--model", "claude-sonnet-4-5", "-p"}, nil, nil, ""},
}

const realSteps = 20

// TestRealAgents has each agent do a task of twenty steps in ring 2 by `agentrun host`, through the model door where
// its description says so and by egress, against a model of ours at its provider's own name. It needs the programs, and
// is no part of CI: make test-agents installs them, each into a prefix of npm's by its name below AGENTRUN_TEST_AGENTS,
// and the table goes into docs/coding-agents.md.
func TestRealAgents(t *testing.T) {
	installed := os.Getenv("AGENTRUN_TEST_AGENTS")
	if installed == "" {
		t.Fatal("AGENTRUN_TEST_AGENTS: where are the agents? make test-agents installs them")
	}
	var table strings.Builder
	tried := 0
	table.WriteString("| agent | version | way | steps | requests | time | peak memory |\n|---|---|---|---|---|---|---|\n")
	for _, a := range realAgents {
		t.Run(a.name, func(t *testing.T) {
			tried++
			prefix := filepath.Join(installed, a.name)
			text, err := os.ReadFile(filepath.Join("../../profiles/agents", a.name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			ways := []string{"egress"}
			if strings.Contains(string(text), "\nway: door\n") {
				ways = []string{"door", "egress"}
			}
			for _, way := range ways {
				t.Run(way, func(t *testing.T) {
					row := a.task(t, prefix, way, string(text))
					fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", a.name, installedVersion(prefix), way, row)
				})
			}
		})
	}
	t.Log("\n" + table.String())
	if page := "../../docs/coding-agents.md"; !t.Failed() && tried == len(realAgents) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		whole := regexp.MustCompile(`(?m)(?:^\| agent \| version \|.*\n)(?:^\|.*\n)+`)
		write(t, page, whole.ReplaceAllLiteralString(string(text), table.String()), 0o644)
	}
}

// task is one of them, and gives the rest of its row.
func (a realAgent) task(t *testing.T, prefix, way, description string) string {
	h := a.host(t, prefix, description)
	c := h.call([]string{"--way", way}, append(slices.Clone(a.print), "do the steps")...)
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := c.finish(t)
	r.want(t, 0, "exited")
	if !strings.Contains(r.stdout+r.stderr, h.script.Last) {
		t.Errorf("it says %.2000s\n%.2000s\nasked %q", r.stdout, r.stderr, h.script.Asked())
	}
	h.hasDone(realSteps)
	if n := len(calls(h.x.n.audit("node"), "llm")); n > 0 != (way == "door") {
		t.Errorf("%d calls by the door are on record", n)
	}
	return fmt.Sprintf("%d | %d | %.1f s | %d MiB", realSteps, len(h.script.Asked()), r.status.WallTime.Seconds(), r.status.PeakMemory>>20)
}

// realHost is where one is hosted, with its model.
type realHost struct {
	t      *testing.T
	x      *exit
	script *exittest.Script
	name   string
	key    string
	env    []string
}

// host has the built-in description under another name, which says besides that the provider is at an address of the
// test's and has its certificate.
func (a realAgent) host(t *testing.T, prefix, description string) *realHost {
	h := &realHost{t: t, x: newExit(t), script: &exittest.Script{Last: "ALL-STEPS-ARE-DONE"}, name: a.name + "-try"}
	for i := range realSteps {
		h.script.Commands = append(h.script.Commands, fmt.Sprintf("echo step %d >> steps.txt && ls | wc -l", i+1))
	}
	h.x.host(a.provider, h.script)
	config := t.TempDir()
	if err := os.MkdirAll(filepath.Join(config, "agentrun/agents"), 0o755); err != nil {
		t.Fatal(err)
	}
	private := strings.NewReplacer("name: "+a.name+"\n", "name: "+h.name+"\n", "door: {", "door: {allow_private: true, ca_file: "+h.x.w.CAFile+", ")
	write(t, filepath.Join(config, "agentrun/agents", h.name+".yaml"), private.Replace(description), 0o644)
	h.key = "sk-real-" + a.name + "-0123456789abcdefghij"
	h.env = []string{a.key + "=" + h.key, "XDG_CONFIG_HOME=" + config, "TERM=xterm-256color", "PATH=" + filepath.Join(prefix, "bin") + ":" + os.Getenv("PATH")}
	return h
}

func (h *realHost) call(flags []string, argv ...string) *call {
	all := slices.Concat(h.x.opts("ring2").flags[:2], []string{"--workspace", h.x.ws, "--timeout", "300s", "--cpu-time", "300s"}, flags)
	c := h.x.prepare(opts{state: h.x.n.dir, flags: all, env: h.env}, append([]string{h.name}, argv...)...)
	c.Args[slices.Index(c.Args, "exec")] = "host"
	return c
}

func (h *realHost) hasDone(steps int) {
	h.t.Helper()
	got, _ := os.ReadFile(filepath.Join(h.x.ws, "steps.txt"))
	if n := strings.Count(string(got), "step "); n != steps {
		h.t.Errorf("%d steps, want %d; asked %q", n, steps, h.script.Asked())
	}
	if keys := h.script.Keys(); len(keys) != 1 || !strings.HasSuffix(keys[0], h.key) {
		h.t.Errorf("the model has heard %q, want the key alone", keys)
	}
}

// leave ends a program with a screen as a person does, who waits until it has drawn what was typed.
func leave(term *terminal) {
	for _, keys := range []string{"/exit", "\r"} {
		time.Sleep(2 * time.Second)
		term.type_(keys)
	}
}

// TestRealAgentsOnATerminal has those with a screen of their own do the task there: resized, interrupted, ended, and
// resumed from the kept home.
func TestRealAgentsOnATerminal(t *testing.T) {
	for _, a := range realAgents {
		if a.resume == nil {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("../../profiles/agents", a.name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			h := a.host(t, filepath.Join(os.Getenv("AGENTRUN_TEST_AGENTS"), a.name), string(text))
			term := openTerminal(t, 100, 40)
			before := term.modes()
			c := term.begin(h.call(nil, a.screen...))
			term.until(a.ready)
			time.Sleep(3 * time.Second) // it has drawn its prompt, and reads keys a little later
			term.type_("do the steps")
			time.Sleep(time.Second)
			term.type_("\r")
			term.resize(120, 50)
			term.until(h.script.Last)
			h.hasDone(realSteps)
			leave(term)
			if r := c.finish(t); r.status.State != "exited" {
				t.Errorf("ended as %s (%s)", r.status.State, r.status.Reason)
			}
			if term.modes() != before {
				t.Error("the caller's terminal is not as it was")
			}
			term = openTerminal(t, 100, 40)
			c = term.begin(h.call(nil, append(slices.Clone(a.screen), a.resume...)...))
			term.until(h.script.Last)
			leave(term)
			c.finish(t)
		})
	}
}

// installedVersion is that of the package that the prefix was made for: its only one that isn't another's.
func installedVersion(prefix string) string {
	out, _ := exec.Command("npm", "ls", "-g", "--prefix", prefix, "--depth", "0", "--json").Output()
	var list struct {
		Dependencies map[string]struct{ Version string }
	}
	_ = json.Unmarshal(out, &list)
	for _, d := range list.Dependencies {
		return d.Version
	}
	return "?"
}
