// SPDX-License-Identifier: Apache-2.0

package desk

import (
	"fmt"
	"strings"
	"testing"

	"agentrun/control"
)

// Were a stage or a verdict ever an agent's word, it could neither fill memory nor forge a line.
func TestThreatMetricsStayBounded(t *testing.T) {
	var m Metrics
	m.Observe("tier", "stop")
	m.Observe("tier", "stop")
	m.Observe("a\"} 7\nforged 1\\", strings.Repeat("x", 1000))
	for i := range 1000 {
		m.Observe("stage", fmt.Sprint(i))
	}
	answer, err := m.Route(nil).Do(t.Context(), control.Request{})
	if err != nil {
		t.Fatal(err)
	}
	text := answer.(control.Text).Body
	if !strings.Contains(text, `agentrun_safety_decisions_total{stage="tier",verdict="stop"} 2`+"\n") || !strings.Contains(text, `{stage="other",verdict="other"}`) {
		t.Errorf("got %s", text)
	}
	if n := strings.Count(text, "\n"); n > maxSeries+3 || strings.Contains(text, "\nforged") {
		t.Errorf("got %d lines: %.2000s", n, text)
	}
}
