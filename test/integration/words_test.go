// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// A person who mistypes hears what was meant, or what to do next, and nothing starts.
func TestMistakesNameTheNextStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agent.py"), "print('fine')\n", 0o644)
	for _, tt := range []struct {
		line string
		exit int
		want []string
	}{
		{"exce -- true", 125, []string{`"exce" is no command of agentrun; did you mean exec?`, "agentrun exec -- exce"}},
		{"agent scroe a 0.7", 125, []string{`"scroe" is no command of agentrun agent; did you mean score?`}},
		{"exec --rng 2 -- true", 125, []string{"unknown flag --rng; did you mean --ring?", "exec --help lists the flags"}},
		{"ps --jsno", 2, []string{"unknown flag --jsno; did you mean --json?"}},
		{"exec --ring", 125, []string{"--ring needs a value"}},
		{"exec --ring three -- true", 125, []string{`--ring: invalid value "three"`}},
		{"exec --profile rign2 -- true", 125, []string{"profile rign2", "did you mean ring2?"}},
		{"exec --workspace " + dir + " -- agnet.py", 127, []string{"agnet.py", "hint: did you mean agent.py?"}},
		{"exec --workspace " + dir + " -- ./agnet.py", 127, []string{"hint: did you mean agent.py?"}},
		{"exec --workspace /nosuch -- true", 125, []string{"--workspace: /nosuch isn't there on this host; make it"}},
		{"exec --ro-bind /nosuch -- true", 125, []string{"--ro-bind: /nosuch isn't there on this host"}},
		{"exec --ring 2 --workspace /root -- true", 125, []string{"--workspace: /root is a home", "--bind /root:/workspace"}},
		{"exec --ring 2 --workspace /etc -- true", 125, []string{"--workspace: /etc is a home or one of the system's folders"}},
		{"exec --ring 2 --allow https://example.com/ -- true", 125, []string{`say "example.com"`}},
		{"exec --ring 2 --allow http://example.com:8080/x -- true", 125, []string{`say "example.com:8080"`}},
		{"exec --ring 3 --allow example.com -- true", 125, []string{"--allow: ring 3 has no way to other hosts", "--ring 2"}},
		{"exec --allow example.com -- true", 125, []string{"--allow: ring 3 has no way to other hosts"}},
		{"exec --gateway nosuch.yaml -- true", 125, []string{"--gateway", "nosuch.yaml", "examples/gateway.yaml"}},
		{"exec --tool mth -- true", 125, []string{`--tool "mth": there is no such tool; did you mean math?`}},
		{"exec --tool nosuchthing -- true", 125, []string{"there is no such tool; there are ", "math, "}},
		{"exec --metrics-addr " + busy.Addr().String() + " -- true", 125, []string{"address already in use", "choose another"}},
		{"exec --agent fresh --ring 2 -- true", 125, []string{"agentrun agent score fresh 0.7 gives it ring 2"}},
		{"exec --agent fresh --ring 1 -- true", 125, []string{"agentrun agent score fresh 0.97 --consensus"}},
		{"inspect nosuch", 1, []string{"no live run", "agentrun ps --all"}},
	} {
		t.Run(tt.line, func(t *testing.T) {
			r := p.do(strings.Fields(tt.line)...)
			for _, want := range tt.want {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("stderr lacks %q", want)
				}
			}
			if r.exit != tt.exit || strings.Contains(r.stderr, "\x1b") {
				t.Errorf("got exit %d, want %d\n%s%s", r.exit, tt.exit, r.stdout, r.stderr)
			}
		})
	}
	// What is left open on purpose: the list of an agent's run in ring 3 counts while it is elevated.
	p.must("exec", "--agent", "fresh", "--allow", "example.com", "--", "true")
}

// A run of ring 2 without a workspace loses what it writes; a person at a terminal hears so before it begins.
func TestRing2WithoutWorkspaceWarns(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	for _, tt := range []struct {
		flags []string
		warns bool
	}{
		{[]string{"--no-gateway", "--ring", "2"}, true},
		{[]string{"--no-gateway", "--ring", "2", "--workspace", workspace(t)}, false},
		{[]string{"--no-gateway", "--ring", "3"}, false},
	} {
		term := openTerminal(t, 100, 30)
		c := term.begin(prepare(t, opts{flags: tt.flags}, "/probe", "exit", "0"))
		shown := term.until("agentrun: ran ")
		if strings.Contains(shown, "what the run writes is gone") != tt.warns {
			t.Errorf("%v: %q, want a warning: %v", tt.flags, shown, tt.warns)
		}
		c.finish(t).want(t, 0, "exited")
	}
}

// A shell that nobody can type into ends at once; a person at a terminal hears why, and what gives it one.
func TestShellWithoutATerminalIsTold(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	for _, tt := range []struct {
		flags, command []string
		told           bool
	}{
		{nil, []string{"/bin/sh"}, true},
		{nil, []string{"python3"}, true},
		{nil, []string{"/bin/sh", "-c", "true"}, false},
		{nil, []string{"true"}, false},
		{[]string{"-i"}, []string{"/bin/sh"}, false},
		{[]string{"-t"}, []string{"/bin/sh"}, false},
	} {
		term := openTerminal(t, 100, 30)
		c := term.begin(prepare(t, opts{flags: append([]string{"--no-gateway", "--ring", "2"}, tt.flags...)}, tt.command...))
		if len(tt.flags) > 0 {
			term.type_("exit\n")
		}
		shown := term.until("agentrun: ran ")
		if strings.Contains(shown, "nothing is typed into it") != tt.told {
			t.Errorf("%v %v: %q, want it told: %v", tt.flags, tt.command, shown, tt.told)
		}
		c.finish(t).want(t, 0, "exited")
	}
}
