// SPDX-License-Identifier: Apache-2.0

package router

import (
	"encoding/json"
	"fmt"
	"strings"

	"agentrun/internal/read"
)

// Config is the section `router`. The zero value has no rules: names and words still find tools.
type Config struct {
	Rules []Rule `yaml:"rules"`
	Words bool   `yaml:"words"` // whether words find tools where neither a rule nor a name does; default true
}

// Rule sends an intent to a tool.
type Rule struct {
	Intent string          `yaml:"intent"` // words; * stands for any text. Case and spaces don't count
	Tool   string          `yaml:"tool"`   // name
	Args   json.RawMessage `yaml:"args"`   // template: a string "$name" is replaced by that argument, whatever its type; empty: as they come
}

const maxRules = 1000

// ParseConfig reads the section; its error is a *read.InvalidError.
func ParseConfig(n *read.Node) (Config, error) {
	c := Config{Words: true}
	n.Into(&c)
	if err := n.Done(c.check()...); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) check() (errs []error) {
	if len(c.Rules) > maxRules {
		errs = append(errs, read.Bad("rules", "%d, at most %d", len(c.Rules), maxRules))
	}
	for i := range c.Rules {
		r, at := &c.Rules[i], fmt.Sprintf("rules[%d]", i)
		if r.Intent = plain(r.Intent); r.Intent == "" || r.Tool == "" || len(r.Intent) > maxIntent {
			errs = append(errs, read.Bad(at, "want an intent of at most %d bytes and a tool", maxIntent))
		}
		if strings.Count(r.Intent, "*") > 4 {
			errs = append(errs, read.Bad(at+".intent", "more than 4 *"))
		}
	}
	return errs
}
