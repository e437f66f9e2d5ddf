// SPDX-License-Identifier: Apache-2.0

package desk

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"agentrun/control"
)

// maxSeries is more than stages times verdicts: were either ever to come from an agent, the rest would be "other".
const maxSeries = 128

// Metrics counts what a loop decides, by stage and verdict. The zero value has counted nothing.
type Metrics struct {
	mu     sync.Mutex
	counts map[[2]string]uint64
}

// Observe is for safetyloop.Settings.
func (m *Metrics) Observe(stage, verdict string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[[2]string]uint64{}
	}
	key := [2]string{label(stage), label(verdict)}
	if _, known := m.counts[key]; !known && len(m.counts) >= maxSeries {
		key = [2]string{"other", "other"}
	}
	m.counts[key]++
}

// label keeps what has a meaning in the text format out of it.
func label(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, s[:min(len(s), 64)])
}

// text is the format that Prometheus reads.
func (m *Metrics) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := make([]string, 0, len(m.counts))
	for key, n := range m.counts {
		lines = append(lines, fmt.Sprintf("agentrun_safety_decisions_total{stage=%q,verdict=%q} %d\n", key[0], key[1], n))
	}
	slices.Sort(lines)
	return "# HELP agentrun_safety_decisions_total What the safety loop decided, by stage and verdict.\n# TYPE agentrun_safety_decisions_total counter\n" + strings.Join(lines, "")
}

// Route is GET /metrics of the control socket: curl --unix-socket, or a scraper that runs as the operator. What others have
// to tell there comes first; nil: nobody has.
func (m *Metrics) Route(others func() (string, error)) control.Route {
	return control.Route{Method: "GET", Path: "/metrics", Do: func(context.Context, control.Request) (any, error) {
		text, err := m.With(others)
		return control.Text{ContentType: "text/plain; version=0.0.4; charset=utf-8", Body: text}, err
	}}
}

// With is what others have to tell, nil for nothing, and then what was counted here.
func (m *Metrics) With(others func() (string, error)) (string, error) {
	if others == nil {
		return m.text(), nil
	}
	text, err := others()
	return text + m.text(), err
}
