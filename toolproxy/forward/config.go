// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Schema is the JSON Schema of the section egress: of gateway.yaml.
//
//go:embed schema.json
var Schema []byte

const (
	maxSection = 1 << 20
	maxRules   = 1024
)

// Config is the section egress: of gateway.yaml. The zero value allows nothing beyond what the ring does, and is valid.
type Config struct {
	Allow    []string `yaml:"allow"`             // entries as egress.ParseEntry reads them
	Rules    []Rule   `yaml:"rules"`             // entries that say more than fits on a line
	Private  []string `yaml:"private"`           // addresses and networks that aren't public, by the operator's word (M-8)
	Capture  []uint16 `yaml:"capture_ports"`     // captured beside 80 and 443; the supervisor makes the sockets
	CAFiles  []string `yaml:"ca_files"`          // PEM; trusted for intercepted upstreams beside the system's roots
	Excluded []string `yaml:"intercept_exclude"` // NAME or *.NAME: never intercepted, whatever a rule says
	Limits   Limits   `yaml:"limits"`
}

// Rule allows requests to one host.
type Rule struct {
	Host      string            `yaml:"host"`       // as in an entry: NAME, *.NAME, an address; not *
	Ports     []uint16          `yaml:"ports"`      // none: 80 and 443; with intercept 443
	Methods   []string          `yaml:"methods"`    // none: all
	Paths     []string          `yaml:"paths"`      // prefixes; none: all
	Intercept bool              `yaml:"intercept"`  // read what is inside TLS; needs the run's CA
	WebSocket bool              `yaml:"websockets"` // let them through although methods or paths are restricted
	Headers   map[string]Header `yaml:"headers"`    // put into matching requests; only with intercept
}

// Header is one that the proxy puts into requests in place of the agent's own.
type Header struct {
	Secret string `yaml:"secret"` // name of an entry of secrets:
	Prefix string `yaml:"prefix"` // before it, for instance "Bearer "
}

// Limits bound what a run may use. Zero fields have their defaults.
type Limits struct {
	Connections      int           `yaml:"connections"`       // of the agent at once; 256
	TotalConnections int64         `yaml:"total_connections"` // in the run; 1,000,000
	ConnectionBytes  int64         `yaml:"connection_bytes"`  // both ways; 64 GiB
	RunBytes         int64         `yaml:"run_bytes"`         // both ways; 1 TiB
	Idle             time.Duration `yaml:"idle"`              // without a byte; 5 minutes
	Total            time.Duration `yaml:"total"`             // of a connection; 12 hours
	Head             time.Duration `yaml:"head"`              // until a request's head, a handshake or a hello is complete; 10 s
	Lookup           time.Duration `yaml:"lookup"`            // of a name; 5 s
	Dial             time.Duration `yaml:"dial"`              // of all addresses together, with TLS; 10 s
	Body             int64         `yaml:"body"`              // bytes of one request; 1 GiB
}

func (l Limits) withDefaults() Limits {
	orInt(&l.TotalConnections, 1_000_000)
	orInt(&l.ConnectionBytes, 64<<30)
	orInt(&l.RunBytes, 1<<40)
	orInt(&l.Body, 1<<30)
	if l.Connections == 0 {
		l.Connections = 256
	}
	for _, d := range []struct {
		at      *time.Duration
		seconds int
	}{{&l.Idle, 300}, {&l.Total, 12 * 3600}, {&l.Head, 10}, {&l.Lookup, 5}, {&l.Dial, 10}} {
		if *d.at == 0 {
			*d.at = time.Duration(d.seconds) * time.Second
		}
	}
	return l
}

func orInt(n *int64, def int64) {
	if *n == 0 {
		*n = def
	}
}

// ParseConfig reads the YAML of the section. Unknown keys are errors that name their path. An empty section is the zero
// value.
func ParseConfig(section []byte) (Config, error) {
	var c Config
	if len(section) > maxSection || !utf8.Valid(section) {
		return Config{}, errors.New("egress: longer than 1 MiB, or not UTF-8")
	}
	dec := yaml.NewDecoder(bytes.NewReader(section))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return c, nil
	} else if err != nil {
		return Config{}, fmt.Errorf("egress: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("egress: more than one document")
	}
	if err := checkKeys(doc.Content[0], "egress", reflect.TypeFor[Config]()); err != nil {
		return Config{}, err
	}
	if err := doc.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("egress: %w", err)
	}
	if err := c.check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// checkKeys refuses keys that the type doesn't have. The library's own strict mode knows no paths.
func checkKeys(n *yaml.Node, path string, t reflect.Type) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("%s: line %d: anchors and aliases are not part of the format", path, n.Line)
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" && path == "egress" {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return checkMapping(n, path, t)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return fmt.Errorf("%s: line %d: want a list", path, n.Line)
		}
		for i, item := range n.Content {
			if err := checkKeys(item, path+"["+strconv.Itoa(i)+"]", t.Elem()); err != nil {
				return err
			}
		}
	default:
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return fmt.Errorf("%s: line %d: want a single value", path, n.Line)
		}
		if t.Kind() == reflect.String && n.Tag != "!!str" {
			return fmt.Errorf("%s: line %d: want text; write it in quotes", path, n.Line)
		}
	}
	return nil
}

func checkMapping(n *yaml.Node, path string, t reflect.Type) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("%s: line %d: want keys and values", path, n.Line)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		at := path + "." + key
		inner, ok := t, t.Kind() == reflect.Map
		if ok {
			inner = t.Elem()
		} else {
			for f := range t.NumField() {
				if t.Field(f).Tag.Get("yaml") == key {
					inner, ok = t.Field(f).Type, true
				}
			}
		}
		if !ok {
			return fmt.Errorf("%s: line %d: unknown key", at, n.Content[i].Line)
		}
		if err := checkKeys(n.Content[i+1], at, inner); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) check() error {
	if len(c.Rules) > maxRules {
		return fmt.Errorf("egress.rules: %d, at most %d", len(c.Rules), maxRules)
	}
	if slices.Contains(c.Capture, 0) || len(c.Capture) > 64 {
		return errors.New("egress.capture_ports: want at most 64 ports from 1 to 65535")
	}
	l := c.Limits
	for _, n := range []int64{int64(l.Connections), l.TotalConnections, l.ConnectionBytes, l.RunBytes, l.Body,
		int64(l.Idle), int64(l.Total), int64(l.Head), int64(l.Lookup), int64(l.Dial)} {
		if n < 0 {
			return errors.New("egress.limits: a limit is negative; leave it out for its default")
		}
	}
	if l.Connections > 65536 {
		return errors.New("egress.limits.connections: at most 65536")
	}
	_, err := compile(*c, nil)
	return err
}

// headerName tells whether a header may be injected: framing, routing and what belongs to a hop are the proxy's own.
func headerName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	switch strings.ToLower(name) {
	case "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive", "expect",
		"proxy-connection", "proxy-authorization", "proxy-authenticate", "accept-encoding", "range", "if-range":
		return false
	}
	return true
}
