// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// mistake is what a person got wrong in a file, and the lines that tell it: LINE: path: message.
type mistake struct {
	name, text string
	want       []string
}

// toldOf are the lines about a file, without its name.
func toldOf(output, file string) (lines []string) {
	for line := range strings.Lines(output) {
		if _, rest, ok := strings.Cut(line, file+":"); ok {
			lines = append(lines, strings.TrimSpace(rest))
		}
	}
	return lines
}

func (m mistake) check(t *testing.T, file, output string) {
	t.Helper()
	got := toldOf(output, file)
	if !slices.EqualFunc(got, m.want, strings.HasPrefix) {
		t.Errorf("%s\n got %q\nwant %q\n%s", m.text, got, m.want, output)
	}
}

func gatewayMistakes() []mistake {
	return []mistake{
		{"key on line 13", "egress:\n  allow: [pypi.org]\n\ntools:\n  math:\n    approve: true\n\n\n# models\n\n\nllm:\n  providrs:\n  - name: a\n",
			[]string{"13: llm.providrs: unknown key; did you mean providers?"}},
		{"key on line 9", "egress:\n  allow: [pypi.org]\n\ntools:\n  math:\n    approve: true\n\n\n    pricee: 3\n", []string{"9: tools.math.pricee: unknown key; did you mean price?"}},
		{"all at once", "router: {words: yes}\negres: {}\nbreaker:\n  rate: 2\n  window: 30\nsafety: {policy: p.yaml}\n", []string{
			`1: router.words: want true or false, got text "yes"`, "2: egres: unknown key; did you mean egress?", "4: breaker.rate: 2 is not above 0",
			"5: breaker.window: want a duration with a unit, such as 30s, got int 30", `6: safety.policy: "p.yaml": want an absolute path`,
		}},
		{"of a tool's kind", "tools:\n  search:\n    category: A\n    description: d\n    read_only: true\n    args: {type: object}\n    http:\n      url: https://h.example/\n      headers:\n        X-Key: {secert: k}\n      methd: GET\n",
			[]string{"10: tools.search.http.headers.X-Key.secert: unknown key; did you mean secret?", "11: tools.search.http.methd: unknown key; did you mean method?"}},
		{"of a command", "tools:\n  run:\n    category: C\n    description: d\n    reversibility: none\n    args: {type: object}\n    command:\n      argv: [bin/sleep, 10]\n",
			[]string{"8: tools.run.command.argv[1]: want text, got int 10; write it in quotes"}},
		{"of a check", "llm:\n  providers:\n  - name: a\n    base_url: http://h.example/v1\n    models:\n    - {name: m, max_tokens: 0600}\n", []string{
			"4: llm.providers[0].base_url: want https", "6: llm.providers[0].models[0].max_tokens: want a whole number, got int 0600"}},
		{"section twice", "llm: {}\ntools: {}\nllm: {}\n", []string{"3: llm: given twice, first on line 1"}},
		{"of the supervisor", "egress:\n  capture_ports: [ssh]\n", []string{`2: egress.capture_ports[0]: want a whole number from 0 to 65535, got text "ssh"`}},
		{"secret", "secrets:\n  key: hunter2\n", []string{"2: secrets.key: want a mapping (key: value), got text"}},
		{"no YAML", "llm:\n  a: [\n", []string{"2: not YAML: "}},
	}
}

// What a person got wrong is told by the lines of the file, and nothing starts.
func TestGatewayMistakesAreToldByTheirLines(t *testing.T) {
	needSandbox(t)
	for _, m := range gatewayMistakes() {
		t.Run(m.name, func(t *testing.T) {
			file := write(t, filepath.Join(t.TempDir(), "gateway.yaml"), m.text, 0o644)
			var complaint bytes.Buffer
			question, err := json.Marshal(link.Start{Ring: rings.Sandbox, Config: link.Config{Path: file, Text: []byte(m.text)}})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(filepath.Join(filepath.Dir(agentrun), "agentrun-gateway"), "check")
			cmd.Stdin, cmd.Stderr = bytes.NewReader(question), &complaint
			var exited *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exited) {
				t.Errorf("agentrun-gateway check: got %v, want a refusal", err)
			}
			m.check(t, file, complaint.String())
			r := tool(t, "exec", "--gateway", file, "--ro-bind", probeBin+":/probe", "--", "/probe", "ok")
			m.check(t, file, r.stderr)
			if r.exit != 125 {
				t.Errorf("agentrun exec: got exit %d, want 125", r.exit)
			}
		})
	}
}

// The same of what the other programs read; FILE is the file.
func TestMistakesAreToldByTheirLines(t *testing.T) {
	for command, mistakes := range map[string][]mistake{
		"--config FILE plan -- /bin/true": {
			{"unknown key", "log_level: info\n\nserve:\n  max_sandboxs: 3\n", []string{"4: serve.max_sandboxs: unknown key; did you mean max_sandboxes?"}},
			{"all at once", "profile_dirs: /etc\nlive: {apply_time: 100}\nserve: {queue: 0x10, pool: {ring3: 01}}\ncontrol: {read_group: 1000}\n", []string{
				"1: profile_dirs: want a list, got text", "2: live.apply_time: want a duration with a unit", "3: serve.pool.ring3: want a whole number, got int 01", "3: serve.queue: want a whole number, got int 0x10"}},
			{"key twice", "serve: {queue: 1}\nserve: {}\n", []string{"2: serve: given twice, first on line 1"}},
			{"second document", "log_level: info\n---\nlog_level: debug\n", []string{"2: more than one document"}},
		},
		"safety check --policy FILE hint": {
			{"unknown key", "deny: [a]\nagents:\n  builder:\n    dney: [b]\n", []string{"4: agents.builder.dney: unknown key; did you mean deny?"}},
			{"all at once", "mode: on\ndeny: [a, 3]\nmaxAutonomousSteps: 0\nautoApprove: ['*']\n", []string{
				`1: mode: mode "on"`, "2: deny[1]: want text, got int 3", "3: maxAutonomousSteps: 0: want a number", "4: autoApprove[0]: "}},
			{"nothing for a list", "deny:\n", []string{"1: deny: want a list, got nothing"}},
			{"JSON", "{\n  // why\n  \"deny\": [\"a\"],\n  \"confrim\": \"server\"\n}\n", []string{"4: confrim: unknown key; did you mean confirm?"}},
		},
		"saga run FILE": {
			{"all at once", "name: trip\nsteps:\n- id: a\n  exceute: {command: [ls]}\n- id: b\n  execute:\n    command: [sleep, 010]\n    ring: 4\n    workspace: ~\n", []string{
				"4: steps[0].exceute: unknown key; did you mean execute?", "7: steps[1].execute.command[1]: want text, got int 010",
				"8: steps[1].execute.ring: 4, want 1, 2 or 3", "9: steps[1].execute.workspace: want text, got nothing"}},
			{"empty", "# nothing\n", []string{"empty: a saga has at least name and steps"}},
		},
		"policy test FILE": {
			{"unknown key", "cases:\n- name: a\n  expct: {}\n", []string{"3: cases[0].expct: unknown key; did you mean expect?"}},
			{"none", "cases: []\n", []string{"1: cases: there are none"}},
			{"octal", "base: {ring: 03}\ncases:\n- {name: a, expect: {allow: yes}}\n", []string{
				"1: base.ring: want what JSON has, got int 03", `3: cases[0].expect.allow: want true or false, got text "yes"`}},
		},
		"safety serve --http 127.0.0.1:0 --tokens FILE": {
			{"unknown key", "tokens:\n- {name: a, role: agent, sha265: b}\n", []string{"2: tokens[0].sha265: unknown key; did you mean sha256?"}},
			{"role", "tokens:\n- {name: a, role: root, sha256: b}\n", []string{`2: tokens[0]: role "root" of a`}},
		},
	} {
		for _, m := range mistakes {
			t.Run(strings.Fields(command)[0]+" "+strings.Fields(command)[1]+" "+m.name, func(t *testing.T) {
				file := write(t, filepath.Join(t.TempDir(), "file.yaml"), m.text, 0o600)
				args := strings.Fields(command)
				args[slices.Index(args, "FILE")] = file
				r := tool(t, args...)
				m.check(t, file, strings.ReplaceAll(r.stderr, " file.yaml:", " "+file+":"))
				if r.exit == 0 {
					t.Error("got exit 0, want a refusal")
				}
			})
		}
	}
}
