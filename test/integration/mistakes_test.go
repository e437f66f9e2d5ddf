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
		"profile validate FILE": {
			{"all at once", "name: file\ndescription: d\nextends: ring3\nlimits:\n  memroy: 1GiB\n  timeout: 60\n  pids: 0x40\n  why: w\nnetwork: {mode: off}\nfiles: {workspace: ro, why: ~}\n", []string{
				"5: limits.memroy: unknown key; did you mean memory?", `6: limits.timeout: duration "60": want a number with a unit`, "7: limits.pids: want a whole number, got int 0x40",
				`9: network.mode: "off" is none of none, allowlist, public`, "9: network.why: missing: say why", "10: files.why: want text, got nothing"}},
			{"rule", "name: file\ndescription: d\nextends: ring3\nsyscalls:\n- names: [getpid]\n  action: alow\n  args: [{index: 6, op: masked_eq, mask: 0x1, vaule: 0x1}]\n  why: w\n", []string{
				`6: syscalls[0].action: "alow" is none of allow`, "7: syscalls[0].args[0].index: 6 is not from 0 to 5", "7: syscalls[0].args[0].vaule: unknown key; did you mean value?"}},
			{"key twice", "name: file\nname: file\ndescription: d\nextends: ring3\n", []string{"2: name: given twice, first on line 1"}},
			{"second document", "name: file\n---\nname: file\n", []string{"2: more than one document"}},
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

// A plan with a mistake is no plan, and no run is counted against another's.
func TestPlanMistakesAreToldByTheirLines(t *testing.T) {
	const whole = "plans:\n  casual:\n    why: w\n    parallel: 3\n    time: 60s\n    cost_per_run: 1\n    cost_per_day: 1\n    tokens_per_run: 1\n    tokens_per_day: 1\n    steps: 1\n    tools: {allow: ['*']}\n"
	for _, m := range []mistake{
		{"unknown and missing", strings.Replace(whole, "parallel: 3", "paralel: 3", 1), []string{"4: plans.casual.paralel: unknown key; did you mean parallel?"}},
		{"numbers", strings.NewReplacer("steps: 1", "steps: 0x10", "cost_per_run: 1", "cost_per_run: 1e-2", "time: 60s", "time: 60").Replace(whole), []string{
			`5: plans.casual.time: "60": want a time from`, `6: plans.casual.cost_per_run: amount "1e-2": want a decimal number`, `10: plans.casual.steps: "0x10": want an integer`}},
		{"tools", strings.Replace(whole, "'*'", "'a*', 7", 1), []string{`11: plans.casual.tools.allow[0]: "a*": want a tool's name`, "11: plans.casual.tools.allow[1]: want text, got int 7"}},
		{"all missing", "plans:\n  mine: {}\nroles:\n  reader: {why: w, step: 3}\n  Reader: {why: w}\n", []string{
			"2: plans.mine.cost_per_day: missing", "2: plans.mine.cost_per_run: missing", "2: plans.mine.parallel: missing", "2: plans.mine.steps: missing", "2: plans.mine.time: missing",
			"2: plans.mine.tokens_per_day: missing", "2: plans.mine.tokens_per_run: missing", "2: plans.mine.tools: missing", "2: plans.mine.why: missing",
			"4: roles.reader.step: unknown key; did you mean steps?", `5: roles.Reader: "Reader" is no name`}},
	} {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("XDG_CONFIG_HOME", dir)
			file := write(t, filepath.Join(dir, "agentrun", "plans.yaml"), m.text, 0o600)
			r := tool(t, "usage")
			m.check(t, file, r.stderr)
			if r.exit == 0 {
				t.Error("got exit 0, want a refusal")
			}
		})
	}
}

// Requests have no lines: what is wrong is told by its path.
func TestRequestMistakesAreToldByTheirPaths(t *testing.T) {
	policy := func(t *testing.T, text string) string {
		return tool(t, "policy", "explain", "--request", write(t, filepath.Join(t.TempDir(), "request.json"), text, 0o600)).stderr
	}
	conform := func(t *testing.T, text string) string {
		cmd := exec.Command(agentrun, "conform")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(out), `\"`, `"`)
	}
	clock := func(t *testing.T, text string) string {
		return tool(t, "session", "put", "--agent", "a", "--clock", text, "s", "k", "v").stderr
	}
	for _, m := range []struct {
		name string
		ask  func(t *testing.T, text string) string
		text string
		want []string
	}{
		{"policy: all at once", policy, `{"subject":{"id":"a","tpye":"agent"},"context":{"ring":"3","quota":{"used":1.5}},"Action":"x"}`, []string{
			"Action: unknown key; did you mean action?", `context.quota.used: want a whole number, got float 1.5`, `context.ring: ring "3": a ring is 0, 1, 2 or 3`, "subject.tpye: unknown key; did you mean type?"}},
		{"policy: twice", policy, `{"action":"x","action":"y"}`, []string{"action: given twice"}},
		{"policy: null", policy, `{"context":null}`, []string{"context: want an object, got null"}},
		{"policy: YAML", policy, `action: x`, []string{"not JSON: wrong at byte 1"}},
		{"conform: case", conform, `{"id":1,"id":2,"op":"assign","in":{}}`, []string{`"code":"duplicate_field","message":"case: id: given twice"`}},
		{"conform: action", conform, `{"id":1,"op":"validate_action","in":{"action_id":7,"nmae":"n","execute_api":null,"reversibility":"FULL","is_admin":0}}`, []string{
			`"path":"action_id","message":"want text, got int 7; write it in quotes"`, `"path":"execute_api","message":"want text, got null"`, `"path":"is_read_only","message":"missing"`,
			`"path":"is_admin","message":"want true or false, got int 0"`, `"path":"nmae","message":"unknown key; did you mean name?"`}},
		{"conform: half a character", conform, `{"id":1,"op":"validate_action","in":{"action_id":"a\ud800"}}`, []string{`"path":"action_id","message":"want text, got broken text`}},
		{"conform: session", conform, `{"id":1,"op":"session_config","in":{"session_id":"s","max_participants":2.0,"min_participants":"1"}}`, []string{
			`"path":"max_participants","message":"want a whole number, got float 2.0"`, `"path":"min_participants","message":"want a whole number, got text "1""`, `"path":"consistency_mode","message":"missing"`}},
		{"clock", clock, `{"a":-1,"b":1.0}`, []string{"--clock.a: want a whole number from 0 to", "--clock.b: want a whole number from 0 to"}},
		{"no clock", clock, `7`, []string{"--clock: want an object, got int"}},
	} {
		t.Run(m.name, func(t *testing.T) {
			got := m.ask(t, m.text)
			for _, want := range m.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s: got %q, want %q", m.text, got, want)
				}
			}
		})
	}
}
