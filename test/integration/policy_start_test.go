// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// startPolicy lets the agents free and parent start, the latter in ring 2 only: what it starts itself is in ring 3.
const startPolicy = `@id("t.start")
forbid (principal, action == Action::"agent.run.invoke", resource)
unless { principal == Agent::"free" || principal == Agent::"parent" && context.ring == 2 };
`

// asking is a node whose config.yaml names a gateway.yaml with a policy, and what is needed to try to get round it.
type asking struct {
	node
	dir, config, other string
}

func newAsking(t *testing.T) asking {
	t.Helper()
	a := asking{node: newNode(t), dir: t.TempDir()}
	readable(t, a.dir)
	policy := write(t, filepath.Join(a.dir, "p.cedar"), startPolicy, 0o644)
	gateway := write(t, filepath.Join(a.dir, "gateway.yaml"), "policy: {file: '"+policy+"'}\n", 0o600)
	a.config = write(t, filepath.Join(a.dir, "config.yaml"), "gateway: '"+gateway+"'\n", 0o600)
	a.other = write(t, filepath.Join(a.dir, "other.yaml"), "tools: {}\n", 0o600)
	write(t, filepath.Join(a.dir, "yes.cedar"), "permit (principal, action, resource);\n", 0o644)
	return a
}

// starts counts the runs on record, and refusals the starts that a policy refused.
func (a asking) starts() (begun, refused int) {
	for _, e := range a.audit("node") {
		switch {
		case e.Kind == "sandbox_start":
			begun++
		case e.Kind == "ring_check" && e.Data["rule"] == "M-9" && e.Data["action"] == "agent.run.invoke" && e.Data["allowed"] == false:
			refused++
		}
	}
	return begun, refused
}

// M-9: every start is asked about, and no flag leaves out whom the operator's configuration has asked. A refusal is
// on record before anything runs.
func TestM9EveryStartIsAsked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		agent string
		flags []string
		want  string // in what is said; empty: it runs
	}{
		{"allowed", "free", nil, ""},
		{"allowed without a way out", "free", []string{"--no-gateway"}, ""},
		{"as it is", "other", nil, "(acl_block, M-9)"},
		{"without a way out", "other", []string{"--no-gateway"}, "(acl_block, M-9)"},
		{"by a policy that permits all", "other", []string{"--policy", "yes.cedar"}, "(acl_block, M-9)"},
		{"likewise, without a way out", "other", []string{"--no-gateway", "--policy", "yes.cedar"}, "(acl_block, M-9)"},
		{"by a gateway.yaml without policies", "other", []string{"--gateway", "other.yaml"}, "its section policy: is not the node's"},
		{"likewise, without a way out", "other", []string{"--no-gateway", "--gateway", "other.yaml"}, "its section policy: is not the node's"},
		{"as nobody", "", nil, "(acl_block, M-9)"},
		{"as nobody, without a way out", "", []string{"--no-gateway"}, "(acl_block, M-9)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newAsking(t)
			args := []string{"--config", a.config, "exec"}
			if tt.agent != "" {
				args = append(args, "--agent", tt.agent)
			}
			for _, f := range tt.flags {
				if !strings.HasPrefix(f, "--") {
					f = filepath.Join(a.dir, f)
				}
				args = append(args, f)
			}
			r := a.do(append(args, "--", "echo", "ran")...)
			begun, refused := a.starts()
			switch {
			case tt.want == "" && (r.exit != 0 || begun != 1 || refused != 0):
				t.Errorf("exit %d, %d begun, %d refused: %s", r.exit, begun, refused, r.stderr)
			case tt.want != "" && (r.exit != 125 || strings.Contains(r.stdout, "ran") || begun != 0 || !strings.Contains(r.stderr, tt.want)):
				t.Errorf("exit %d, %d begun, %q, %q; want 125, and %s", r.exit, begun, r.stdout, r.stderr, tt.want)
			case strings.Contains(tt.want, "M-9") && refused != 1:
				t.Errorf("%d refusals on record, want 1", refused)
			}
		})
	}
}

// M-9: naming another config.yaml doesn't leave out what the machine's own files in /etc/agentrun say.
func TestM9MachineFilesHold(t *testing.T) {
	t.Parallel()
	for file, text := range map[string]string{"gateway.yaml": "policy: {file: '%s'}\n", "config.yaml": "gateway: '%s'\n"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			a := newAsking(t)
			from := "p.cedar"
			if file == "config.yaml" {
				from = "gateway.yaml"
			}
			lower := filepath.Join(a.dir, "lower")
			if err := os.MkdirAll(filepath.Join(lower, "agentrun"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(lower, "agentrun", file), fmt.Sprintf(text, filepath.Join(a.dir, from)), 0o600)
			empty := write(t, filepath.Join(a.dir, "empty.yaml"), "{}\n", 0o600)
			for _, own := range []string{empty, a.config} {
				cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--", "sh", "-c",
					`mount -t overlay -o lowerdir="$1":/etc overlay /etc && shift && exec "$@"`, "sh", lower,
					agentrun, "--config", own, "--state-dir", a.node.dir, "--run-dir", runDir, "exec", "--no-gateway", "--agent", "other", "--", "echo", "ran")
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "acl_block") {
					t.Errorf("with %s: got %v, %s, want a refusal", own, err, out)
				}
			}
		})
	}
}

// M-9: what a run or a saga starts is asked about by the same policies, and so is a run that a daemon carries out.
func TestM9ChildrenSagasAndDaemonAreAsked(t *testing.T) {
	t.Parallel()
	t.Run("code-executor", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.must("agent", "score", "parent", "0.7")
		ws := workspace(t)
		call, _, _ := strings.Cut(executing, "print(run(\"import socket")
		write(t, filepath.Join(ws, "code.py"), call, 0o644)
		r := a.do("--config", a.config, "exec", "--agent", "parent", "--ring", "2", "--workspace", ws, "--memory", "512M", "--",
			"/usr/bin/python3", "code.py")
		if begun, refused := a.starts(); r.exit != 0 || strings.Contains(r.stdout, "42") || begun != 1 || refused != 1 {
			t.Errorf("exit %d, %d begun, %d refused, %q, want the child refused\n%s", r.exit, begun, refused, r.stdout, r.stderr)
		}
	})
	t.Run("saga", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		for _, agent := range []string{"free", "other"} {
			file := write(t, filepath.Join(a.dir, agent+".yaml"), fmt.Sprintf("name: s\nagent: %s\nsteps:\n"+
				"  - id: one\n    max_retries: 0\n    execute: {command: [/bin/echo, ran], ring: 3}\n    undo: {command: [/bin/true], ring: 3}\n", agent), 0o644)
			r := a.do("--config", a.config, "saga", "run", file)
			if (r.exit == 0) != (agent == "free") || agent == "other" && !strings.Contains(r.stderr+r.stdout, "acl_block") {
				t.Errorf("%s: exit %d\n%s%s", agent, r.exit, r.stdout, r.stderr)
			}
		}
	})
	t.Run("daemon", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		d := newDaemon(t)
		d.state = a.node.dir
		d.start(t)
		for _, agent := range []string{"free", "other"} {
			c := d.prepare(t, opts{flags: []string{"--agent", agent}}, "echo", "ran")
			c.Args = slices.Insert(c.Args, 1, "--config", a.config)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if r := c.finish(t); (r.exit == 0) != (agent == "free") || agent == "other" && !strings.Contains(r.stderr, "acl_block") {
				t.Errorf("%s: exit %d\n%s%s", agent, r.exit, r.stdout, r.stderr)
			}
		}
		if d.said("carried out") != 2 {
			t.Error("the daemon has not carried out both")
		}
	})
}
