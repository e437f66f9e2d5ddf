// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// reveals are the functions that may take what a telemetry.Plaintext holds out of it, and why each has to. What isn't
// revealed can't be printed: whoever wants to know where a log could get a text from has these to read (M-18).
var reveals = map[string]string{
	"cmd/agentrun-safety/terminal.go: Show": "the code on the operator's terminal, which is what it is for (S-10)",
	"hypervisor/keys.go: Given":             "tells a key that is presented from none",
	"hypervisor/keys.go: With":              "the key for whoever issues it, once",
	"hypervisor/keys.go: opened":            "looks at the signature",
	"safetyloop/challenge.go: matches":      "compares the code with what a human typed",
	"safetyloop/intent.go: covers":          "looks for a call's tool and target in the approved step",
	"safetyloop/loop.go: route":             "reads the parameters of an operation",
	"safetyloop/params.go: canonical":       "writes the parameters for an operator, and for what a token is bound to",
	"safetyloop/params.go: check":           "checks types and sizes; its errors name parameters only",
	"safetyloop/params.go: number":          "reads one parameter",
	"safetyloop/params.go: text":            "reads one parameter",
	"safetyloop/showcode.go: Shown":         "the code for the signed webhook, and for the one answer of the control socket that shows it (S-10)",
	"safetyloop/token.go: permit":           "takes a spent token out of the parameters",
	"supervisor/key.go: presented":          "looks for the key in what the sandbox would be given",
	"toolproxy/boundary/redact.go: consume": "joins what is held back to what comes next",
	"toolproxy/boundary/strip.go: consume":  "joins what is held back to what comes next",
	"toolproxy/boundary/strip.go: emit":     "remembers what may still become a tag",
	"toolproxy/cmdtool/command.go: Call":    "the arguments on the command's standard input",
	"toolproxy/gate/approval.go: approval":  "masks the arguments for the operator who is asked",
	"toolproxy/gate/entrance.go: attempt":   "takes the digest of the arguments for the record",
	"toolproxy/gate/permit.go: finish":      "gives the supervisor what undoes the call, to keep for the window (H-7)",
	"toolproxy/gate/safety.go: intent":      "asks for the approved step about this target",
	"toolproxy/httptool/tool.go: Call":      "the arguments in the request to the service",
	"toolproxy/llm/chat.go: give":           "passes the reply through the filters, on to the agent",
	"toolproxy/llm/chat.go: send":           "withholds the reply, in confidential mode",
	"toolproxy/llm/embed.go: Embed":         "sends the texts",
	"toolproxy/llm/embeddings.go: inputs":   "reads the texts of the request",
	"toolproxy/llm/local.go: lastText":      "the test model answers by the last message",
	"toolproxy/llm/local.go: newLocalChat":  "the test model counts the prompt",
	"toolproxy/llm/local.go: offered":       "the test model looks for the function to call",
	"toolproxy/llm/pass.go: args":           "takes the digest of the request",
	"toolproxy/llm/pass.go: bytes":          "writes the request to the provider, as it came",
	"toolproxy/llm/pass.go: marked":         "looks for instructions in what users and tools say",
	"toolproxy/llm/prompt.go: bytes":        "writes the request to the provider",
	"toolproxy/llm/prompt.go: prompt":       "marks the agent's messages as data",
	"toolproxy/llm/prompt.go: say":          "adds a message to the request",
	"toolproxy/llm/prompt.go: settings":     "escapes the texts of tools and formats",
	"toolproxy/llm/request.go: check":       "counts messages and tools; its errors name places only",
	"toolproxy/llm/request.go: offers":      "names the functions that a call may be of",
	"toolproxy/llm/sink.go: delta":          "gathers the reply for the agent",
	"toolproxy/llm/sink.go: finish":         "writes the reply to the agent",
	"toolproxy/llm/sink.go: summary":        "gathers the summary for the agent",
	"toolproxy/llm/summary.go: summarised":  "takes what the summariser wrote",
	"toolproxy/llm/summary.go: summary":     "has the withheld reply summarised, and holds the summary against it",
	"toolproxy/llm/upstream.go: askChat":    "tells an empty reply from one that says something",
	"toolproxy/mcptool/call.go: Call":       "the arguments in the call to the server",
	"toolproxy/tools/invoke.go: Invoke":     "brings the arguments into canonical form",
	"toolproxy/tools/invoke.go: invoke":     "looks for the call's target and for instructions, and holds the arguments against the schema",
	"toolproxy/tools/invoke.go: run":        "takes the arguments of the undo out of the call's (H-7)",
	"toolproxy/tools/undo.go: refuses":      "holds the arguments of the undo against what takes them (H-7)",
	"toolproxy/tools/tool.go: Call":         "decodes the arguments of a built-in tool",
}

func TestM18WhoReveals(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range files(t, func(name string) bool { return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") }) {
		if !strings.Contains(read(t, name), "Reveal") {
			continue
		}
		_, f := parse(t, name)
		for _, d := range f.Decls {
			where := name
			if fn, ok := d.(*ast.FuncDecl); ok {
				where += ": " + fn.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				// Also x.Reveal without a call: a method value reveals as well.
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Reveal" {
					seen[where] = true
				}
				return true
			})
		}
	}
	for _, where := range slices.Sorted(maps.Keys(seen)) {
		if reveals[where] == "" {
			t.Errorf("%s reveals a Plaintext: pass it on as it is, or say here why it has to", where)
		}
	}
	for _, where := range slices.Sorted(maps.Keys(reveals)) {
		if !seen[where] {
			t.Errorf("%s reveals nothing (any more): take it off the list", where)
		}
	}
}
