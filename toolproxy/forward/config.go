// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"cmp"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentrun/internal/read"
)

// Schema is the JSON Schema of the section egress: of gateway.yaml.
//
//go:embed schema.json
var Schema []byte

const maxRules = 1024

// Config is the section egress: of gateway.yaml. The zero value allows nothing beyond what the ring does, and
// is valid.
type Config struct {
	Allow []string `yaml:"allow"` // entries as egress.ParseEntry reads them
	Rules []Rule   `yaml:"rules"` // entries that say more than fits on a line
	// rules of ours by their names, as presets.yaml has them
	Presets []string `yaml:"presets"`
	// addresses and networks that aren't public, by the operator's word (M-8)
	Private []string `yaml:"private"`
	// captured beside 80 and 443; the supervisor makes the sockets
	Capture []uint16 `yaml:"capture_ports"`
	// PEM; trusted for intercepted upstreams beside the system's roots
	CAFiles  []string `yaml:"ca_files"`
	Excluded []string `yaml:"intercept_exclude"` // NAME or *.NAME: never intercepted, whatever a rule says
	Limits   Limits   `yaml:"limits"`
}

// Rule allows requests to one host.
type Rule struct {
	Host      string   `yaml:"host"`      // as in an entry: NAME, *.NAME, an address; not *
	Ports     []uint16 `yaml:"ports"`     // none: 80 and 443; with intercept 443
	Methods   []string `yaml:"methods"`   // none: all
	Paths     []string `yaml:"paths"`     // prefixes; none: all
	Intercept bool     `yaml:"intercept"` // read what is inside TLS; needs the run's CA
	// let them through although methods or paths are restricted
	WebSocket bool              `yaml:"websockets"`
	Headers   map[string]Header `yaml:"headers"` // put into matching requests; only with intercept
	// bytes of a request's body; not said: limits.body; 0: requests have none
	MaxBody  *int64 `yaml:"max_body"`
	MaxReply int64  `yaml:"max_reply"` // bytes of a reply's body; 0: as many as the connection and the run have left
}

// Header is one that the proxy puts into requests in place of the agent's own.
type Header struct {
	Secret string `yaml:"secret"` // name of an entry of secrets:
	Prefix string `yaml:"prefix"` // before it, for instance "Bearer "
	// the header is HTTP's basic authentication by this name, and the secret is the password or token
	User string `yaml:"user"`
}

// Limits bound what a run may use. Zero fields have their defaults.
type Limits struct {
	Connections      int           `yaml:"connections"`       // of the agent at once; 256
	TotalConnections int64         `yaml:"total_connections"` // in the run; 1,000,000
	ConnectionBytes  int64         `yaml:"connection_bytes"`  // both ways; 64 GiB
	RunBytes         int64         `yaml:"run_bytes"`         // both ways; 1 TiB
	Idle             time.Duration `yaml:"idle"`              // without a byte; 5 minutes
	Total            time.Duration `yaml:"total"`             // of a connection; 12 hours
	// until a request's head, a handshake or a hello is complete; 10 s
	Head   time.Duration `yaml:"head"`
	Lookup time.Duration `yaml:"lookup"` // of a name; 5 s
	Dial   time.Duration `yaml:"dial"`   // of all addresses together, with TLS; 10 s
	Body   int64         `yaml:"body"`   // bytes of one request; 1 GiB
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Connections:      cmp.Or(l.Connections, 256),
		TotalConnections: cmp.Or(l.TotalConnections, 1_000_000),
		ConnectionBytes:  cmp.Or(l.ConnectionBytes, 64<<30),
		RunBytes:         cmp.Or(l.RunBytes, 1<<40),
		Idle:             cmp.Or(l.Idle, 5*time.Minute),
		Total:            cmp.Or(l.Total, 12*time.Hour),
		Head:             cmp.Or(l.Head, 10*time.Second),
		Lookup:           cmp.Or(l.Lookup, 5*time.Second),
		Dial:             cmp.Or(l.Dial, 10*time.Second),
		Body:             cmp.Or(l.Body, 1<<30),
	}
}

// ParseConfig reads the section; its error is a *read.InvalidError. An empty section is the zero value.
func ParseConfig(n *read.Node) (Config, error) {
	var c Config
	n.Into(&c)
	if err := n.Done(c.check()); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Authorities reads the files of CAFiles, each of which has a certificate. The errors are read.Bad's, all of
// them: a file that is missing would be told at the run's first connection otherwise, and only if some rule
// intercepts.
func (c *Config) Authorities() (pems [][]byte, err error) {
	var errs []error
	for i, name := range c.CAFiles {
		text, err := os.ReadFile(name) //nolint:gosec // the operator's own configuration names it
		switch {
		case !filepath.IsAbs(name):
			err = fmt.Errorf("%.128q: want an absolute path", name)
		case err == nil && !x509.NewCertPool().AppendCertsFromPEM(text):
			err = fmt.Errorf("%.128q: no certificate in PEM", name)
		}
		if err != nil {
			errs = append(errs, read.Bad(fmt.Sprintf("ca_files[%d]", i), "%v", err))
		}
		pems = append(pems, text)
	}
	return pems, errors.Join(errs...)
}

// check looks at what no type says, and compiles the rules as New will, so that a mistake in one is told when
// the file is read and not when a run starts.
func (c *Config) check() error {
	if len(c.Rules) > maxRules {
		return read.Bad("rules", "%d, at most %d", len(c.Rules), maxRules)
	}
	var errs []error
	if slices.Contains(c.Capture, 0) || len(c.Capture) > 64 {
		errs = append(errs, read.Bad("capture_ports", "want at most 64 ports from 1 to 65535"))
	}
	l := c.Limits
	if min(int64(l.Connections), l.TotalConnections, l.ConnectionBytes, l.RunBytes, l.Body) < 0 ||
		min(l.Idle, l.Total, l.Head, l.Lookup, l.Dial) < 0 {
		errs = append(errs, read.Bad("limits", "a limit is negative; leave it out for its default"))
	}
	if l.Connections > 65536 {
		errs = append(errs, read.Bad("limits.connections", "at most 65536"))
	}
	_, err := compile(*c, nil)
	return errors.Join(append(errs, err)...)
}

// headerName tells whether a header may be injected: framing, routing and what belongs to a hop are the
// proxy's own.
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
