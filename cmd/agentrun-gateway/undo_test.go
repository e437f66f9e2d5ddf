// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"agentrun/toolproxy/link"
)

// H-7: how long a call can be undone the configuration says. The supervisor has it from the run's gateway, which may have fallen.
func TestH7WindowIsTheConfigurations(t *testing.T) {
	ask := link.UndoAsk{Tool: "order", Args: json.RawMessage(`{}`), Start: link.Start{Version: version, Config: link.Config{Path: "gateway.yaml", Text: []byte(
		"tools:\n  order:\n    description: orders\n    args: {type: object}\n    category: B\n    reversibility: full\n    command: {argv: [/bin/true]}\n" +
			"    undo: {window: 1m, command: {argv: [/bin/true]}}\n")}}}
	now := time.Now()
	for name, tt := range map[string]struct {
		made  time.Time
		undid bool
	}{
		"within it":  {now.Add(-time.Minute + 1), true},
		"at its end": {now.Add(-time.Minute), false},
		"never":      {time.Time{}, false},
	} {
		ask.Made, ask.Begun = tt.made, now
		answer, err := undo(ask)
		if (answer.Command != nil) != tt.undid || (err == nil) != tt.undid || err != nil && !strings.Contains(err.Error(), "window") {
			t.Errorf("%s: got %+v, %v", name, answer, err)
		}
	}
}
