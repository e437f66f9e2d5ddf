// SPDX-License-Identifier: Apache-2.0

package otel

import (
	_ "embed"
	"errors"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"time"

	"agentrun/internal/read"
	"agentrun/internal/upstream"
	"agentrun/telemetry/runlog"
	"agentrun/telemetry/scrape"
)

// Schema is the JSON Schema of the section telemetry:.
//
//go:embed schema.json
var Schema []byte

// Defaults and bounds.
const (
	DefaultTimeout = 5 * time.Second
	MaxTimeout     = 30 * time.Second
	DefaultSample  = 1.0
	maxHeaders     = 16
)

// Config is the section telemetry:. The zero value exports, serves and keeps nothing beyond run logs of errors.
type Config struct {
	OTLP    OTLP    `yaml:"otlp"`
	Metrics Metrics `yaml:"metrics"`
	Logs    Logs    `yaml:"logs"`
}

// OTLP is where spans go.
type OTLP struct {
	Endpoint string            `yaml:"endpoint"` // https://host[:port][/path]; http to loopback addresses only; empty: nothing is exported
	Headers  map[string]Header `yaml:"headers"`
	Timeout  time.Duration     `yaml:"timeout"` // of one export; 0: DefaultTimeout
	Sample   *float64          `yaml:"sample"`  // share of runs, 0 to 1; nil: all. A run is exported whole or not at all
	CAFile   string            `yaml:"ca_file"` // PEM; instead of the system's roots
}

// Header is sent with each export: exactly one of its fields is set.
type Header struct {
	Secret string `yaml:"secret"` // name of an entry of secrets:
	Value  string `yaml:"value"`  // what is no secret
}

// Metrics is where Prometheus may ask.
type Metrics struct {
	Addr     string `yaml:"addr"`     // HOST:PORT; empty: nowhere
	Anywhere bool   `yaml:"anywhere"` // the address may be other than loopback
}

// Logs are the logs of runs (M-18).
type Logs struct {
	runlog.Policy
	Level   string `yaml:"level"` // debug, info, warn, error; empty: info
	MaskIPs bool   `yaml:"mask_ips"`
}

// ParseConfig reads the section; its error is a *read.InvalidError.
func ParseConfig(n *read.Node) (Config, error) {
	var c Config
	n.Into(&c)
	if err := n.Done(c.OTLP.check(), c.Metrics.check(), c.Logs.check()); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (o OTLP) check() error {
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, read.Bad("otlp."+path, format, args...))
	}
	if o.Endpoint != "" {
		if _, err := o.url(); err != nil {
			bad("endpoint", "%v", err)
		}
	} else if len(o.Headers) > 0 || o.CAFile != "" || o.Sample != nil {
		bad("endpoint", "missing, so that nothing is exported")
	}
	if o.Timeout < 0 || o.Timeout > MaxTimeout {
		bad("timeout", "%v: want up to %v", o.Timeout, MaxTimeout)
	}
	if s := o.sample(); math.IsNaN(s) || s < 0 || s > 1 {
		bad("sample", "%v: want 0 to 1", s)
	}
	if len(o.Headers) > maxHeaders {
		bad("headers", "%d: want at most %d", len(o.Headers), maxHeaders)
	}
	for name, h := range o.Headers {
		if (h.Secret == "") == (h.Value == "") {
			bad("headers."+name, "want either secret or value")
		}
		if !headerName(name) || strings.ContainsAny(h.Value, "\r\n\x00") {
			bad("headers."+name, "not a header")
		}
	}
	return errors.Join(errs...)
}

// headerName is a token (RFC 9110, 5.6.2), in the characters that are used.
func headerName(name string) bool {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return false
		}
	}
	return name != ""
}

func (o OTLP) sample() float64 {
	if o.Sample == nil {
		return DefaultSample
	}
	return *o.Sample
}

// url refuses what would send spans, and the secret in a header, over a wire in plain.
func (o OTLP) url() (*url.URL, error) { return upstream.Endpoint(o.Endpoint, tracesPath) }

// tracesPath of OTLP/HTTP, below the endpoint.
const tracesPath = "/v1/traces"

func (m Metrics) check() error {
	if m.Addr == "" {
		if m.Anywhere {
			return read.Bad("metrics.addr", "missing")
		}
		return nil
	}
	if _, err := scrape.CheckAddr(m.Addr, m.Anywhere); err != nil {
		return read.Under("metrics.addr", err)
	}
	return nil
}

func (l Logs) check() error {
	var errs []error
	if err := l.Validate(); err != nil {
		errs = append(errs, read.Under("logs", err))
	}
	if _, err := l.level(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l Logs) level() (slog.Level, error) {
	switch l.Level {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return slog.LevelError, read.Bad("logs.level", "%.16q: want debug, info, warn or error", l.Level)
}
