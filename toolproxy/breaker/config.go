// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	_ "embed"
	"math"
	"time"

	"agentrun/internal/read"
)

// Schema is the JSON Schema of the section breaker: of gateway.yaml.
//
//go:embed schema.json
var Schema []byte

// Config is the section breaker: of gateway.yaml. The zero value is the defaults: shedding on, killing off.
type Config struct {
	Off    bool          // tools are called however often they fail
	Calls  int           // of a tool within Window before its failures count; 0: 10
	Rate   float64       // of failures at which it opens, above 0 to 1; 0: 0.5
	Window time.Duration // 0: 30 s
	Open   time.Duration // how long it is shut until one call is let through; 0: 30 s

	KillAt     float64       // share of failures over all tools of the run at which it is killed; 0: never
	KillCalls  int           // within KillWindow, before that counts; 0: 20
	KillWindow time.Duration // 0: 1 min
}

// The section as it is written; pointers tell what was said.
type rawConfig struct {
	Enabled    *bool          `yaml:"enabled"`
	Calls      *int           `yaml:"calls"`
	Rate       *float64       `yaml:"rate"`
	Window     *time.Duration `yaml:"window"`
	Open       *time.Duration `yaml:"open"`
	KillAt     *float64       `yaml:"kill_at"`
	KillCalls  *int           `yaml:"kill_calls"`
	KillWindow *time.Duration `yaml:"kill_window"`
}

// Bounds of the section.
const (
	maxCalls  = 10_000
	minWindow = time.Second
	maxWindow = time.Hour
)

// ParseConfig reads the section; its error is a *read.InvalidError.
func ParseConfig(n *read.Node) (Config, error) {
	var raw rawConfig
	n.Into(&raw)
	c := Config{Off: raw.Enabled != nil && !*raw.Enabled}
	err := n.Done(
		count("calls", raw.Calls, &c.Calls), share("rate", raw.Rate, &c.Rate), span("window", raw.Window, &c.Window), span("open", raw.Open, &c.Open),
		share("kill_at", raw.KillAt, &c.KillAt), count("kill_calls", raw.KillCalls, &c.KillCalls), span("kill_window", raw.KillWindow, &c.KillWindow),
	)
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

func count(key string, said, into *int) error {
	if said == nil {
		return nil
	}
	*into = *said
	if *said < 1 || *said > maxCalls {
		return read.Bad(key, "%d is not within 1 and %d", *said, maxCalls)
	}
	return nil
}

// share refuses NaN by asking for what it must be, not for what it must not.
func share(key string, said, into *float64) error {
	if said == nil {
		return nil
	}
	*into = *said
	if !(*said > 0 && *said <= 1) || math.IsNaN(*said) {
		return read.Bad(key, "%v is not above 0 and at most 1", *said)
	}
	return nil
}

func span(key string, said, into *time.Duration) error {
	if said == nil {
		return nil
	}
	*into = *said
	if *said < minWindow || *said > maxWindow {
		return read.Bad(key, "%v is not within %v and %v", *said, minWindow, maxWindow)
	}
	return nil
}

func (c Config) withDefaults() Config {
	for at, def := range map[*int]int{&c.Calls: 10, &c.KillCalls: 20} {
		if *at <= 0 {
			*at = def
		}
	}
	if !(c.Rate > 0) {
		c.Rate = 0.5
	}
	for at, def := range map[*time.Duration]time.Duration{&c.Window: 30 * time.Second, &c.Open: 30 * time.Second, &c.KillWindow: time.Minute} {
		if *at <= 0 {
			*at = def
		}
	}
	return c
}
