// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
)

const configFree = "by the daemon, without a gateway.yaml"

// configured measures starts with a gateway.yaml beside starts without one, each apart from what the others left to do.
func (b *bench) configured() ([]Row, error) {
	text, err := os.ReadFile(filepath.Join("examples", "gateway.yaml"))
	if err != nil {
		return nil, err
	}
	// Its ports would be sockets more, and another kind of sandbox to keep ready.
	file := filepath.Join(b.dir, "gateway.yaml")
	if err := os.WriteFile(file, bytes.Replace(text, []byte("\n  capture_ports:"), []byte("\n# capture_ports:"), 1), 0o600); err != nil {
		return nil, err
	}
	policy := filepath.Join(b.dir, "policy.cedar")
	if err := os.WriteFile(policy, []byte(`@id("bench") forbid (principal, action == Action::"tool.invoke", resource == Tool::"text");`), 0o644); err != nil {
		return nil, err
	}
	start := func(name, note string, flags ...string) contender {
		argv := with([]string{b.agentrun, "exec", "--ring", "3"}, append(flags, "--", "/bin/true")...)
		return contender{name: name, argv: argv, note: note, rest: settled}
	}
	return b.beside(nil, func() ([]Row, error) {
		return b.race([]contender{
			start(configFree, ""),
			start("by the daemon, with one", "examples/gateway.yaml; what its check said is kept", "--gateway", file),
			start("by the daemon, with a policy", "the gateway's program is asked about each run", "--policy", policy),
			start("alone, without a gateway.yaml", "", "--no-daemon"),
			start("alone, with one", "", "--no-daemon", "--gateway", file),
		}, []reference{{name: configFree, label: "without", added: true}, {name: "alone, without a gateway.yaml", label: "alone, without", added: true}})
	})
}
