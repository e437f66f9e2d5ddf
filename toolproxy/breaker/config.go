// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"cmp"
	_ "embed"
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
		within("calls", raw.Calls, &c.Calls, 1, maxCalls), share("rate", raw.Rate, &c.Rate),
		within("window", raw.Window, &c.Window, minWindow, maxWindow), within("open", raw.Open, &c.Open, minWindow, maxWindow),
		share("kill_at", raw.KillAt, &c.KillAt), within("kill_calls", raw.KillCalls, &c.KillCalls, 1, maxCalls),
		within("kill_window", raw.KillWindow, &c.KillWindow, minWindow, maxWindow),
	)
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// within refuses what is beyond the bounds.
func within[T cmp.Ordered](key string, said, into *T, least, most T) error {
	if said == nil {
		return nil
	}
	*into = *said
	if *said < least || *said > most {
		return read.Bad(key, "%v is not within %v and %v", *said, least, most)
	}
	return nil
}

// share refuses NaN by asking for what it must be, not for what it must not.
func share(key string, said, into *float64) error {
	if said == nil {
		return nil
	}
	*into = *said
	if !(*said > 0 && *said <= 1) {
		return read.Bad(key, "%v is not above 0 and at most 1", *said)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Calls, c.KillCalls, c.Rate = cmp.Or(c.Calls, 10), cmp.Or(c.KillCalls, 20), cmp.Or(c.Rate, 0.5)
	c.Window, c.Open = cmp.Or(c.Window, 30*time.Second), cmp.Or(c.Open, 30*time.Second)
	c.KillWindow = cmp.Or(c.KillWindow, time.Minute)
	return c
}
