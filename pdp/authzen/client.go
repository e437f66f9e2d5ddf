// SPDX-License-Identifier: Apache-2.0

package authzen

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"agentrun/internal/upstream"
	"agentrun/pdp"
)

// Bounds of what a remote PDP can cost.
const (
	DefaultTimeout     = 100 * time.Millisecond
	MaxTimeout         = 2 * time.Second
	MaxAnswer          = 64 << 10 // bytes
	DefaultMaxInFlight = 64
	DefaultDenyTTL     = time.Second
	MaxTTL             = time.Minute
	DefaultCacheSize   = 4096 // answers; about 300 bytes each
	MaxCacheSize       = 1 << 16
)

// endpoint of the specification, below the base URL.
const endpoint = "/access/v1/evaluation"

// Options of a Client. Values out of bounds are errors, not corrected: an operator who wrote 10 s means something.
type Options struct {
	// URL of the PDP; the endpoint's path is appended unless it is there. https, or http to a loopback address.
	URL string
	// Token is sent as a bearer token; empty for none.
	Token string
	// Timeout of one decision, everything included; 0 for DefaultTimeout, at most MaxTimeout.
	Timeout time.Duration
	// AllowTTL is how long an allowance is used again; 0, the default, not at all. At most MaxTTL.
	AllowTTL time.Duration
	// DenyTTL is how long a denial is used again; 0 for DefaultDenyTTL, negative for not at all. At most MaxTTL.
	DenyTTL time.Duration
	// CacheSize in answers; 0 for DefaultCacheSize.
	CacheSize int
	// MaxInFlight is how many requests may wait for the PDP at once; 0 for DefaultMaxInFlight.
	MaxInFlight int
	// Roots are the only authorities, for a private CA; nil for the host's.
	Roots *x509.CertPool
	// Clock for the cache; nil for time.Now.
	Clock func() time.Time
}

// Client is a remote decider. It is safe for concurrent use; the zero value refuses.
type Client struct {
	decide   pdp.Decider
	http     *http.Client
	url      string
	token    string
	timeout  time.Duration
	inFlight chan struct{}
	cache    *cache
}

// New checks the options. It doesn't look whether the PDP is there: that may change at any time, and each decision finds out.
func New(o Options) (*Client, error) {
	target, err := upstream.Endpoint(o.URL, endpoint) // over plain http whoever sits on the way could say yes
	if err != nil {
		return nil, fmt.Errorf("authzen: the URL: %w", err)
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	c := &Client{
		url: target.String(), token: o.Token, timeout: o.Timeout,
		inFlight: make(chan struct{}, o.MaxInFlight),
		cache:    newCache(o.CacheSize, o.AllowTTL, o.DenyTTL, o.Clock),
		http: upstream.Client(upstream.Options{
			AllowPrivate: true, Roots: o.Roots, Timeout: o.Timeout, MaxConns: o.MaxInFlight, MaxHeader: 16 << 10,
		}),
	}
	c.decide = pdp.Guarded(pdp.DeciderFunc(c.cached))
	return c, nil
}

func (o *Options) complete() error {
	bounded := func(name string, d *time.Duration, byDefault, most time.Duration) error {
		if *d == 0 {
			*d = byDefault
		}
		if *d > most {
			return fmt.Errorf("authzen: %s %v: at most %v", name, *d, most)
		}
		return nil
	}
	if o.CacheSize == 0 {
		o.CacheSize = DefaultCacheSize
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	var errs []error
	if o.Timeout < 0 || o.AllowTTL < 0 || o.CacheSize < 1 || o.CacheSize > MaxCacheSize || o.MaxInFlight < 1 {
		errs = append(errs, errors.New("authzen: timeout, allow TTL, cache size or requests in flight out of range"))
	}
	if strings.ContainsAny(o.Token, "\r\n") {
		errs = append(errs, errors.New("authzen: the token has a line break"))
	}
	return errors.Join(append(errs,
		bounded("timeout", &o.Timeout, DefaultTimeout, MaxTimeout),
		bounded("allow TTL", &o.AllowTTL, 0, MaxTTL),
		bounded("deny TTL", &o.DenyTTL, DefaultDenyTTL, MaxTTL))...)
}

// Decide asks the remote PDP, or its cache.
func (c *Client) Decide(ctx context.Context, r pdp.Request) pdp.Decision {
	if c == nil || c.decide == nil {
		return pdp.DeciderFunc(nil).Decide(ctx, r)
	}
	return c.decide.Decide(ctx, r)
}

// Close lets go of idle connections.
func (c *Client) Close() {
	if c != nil && c.http != nil {
		c.http.CloseIdleConnections()
	}
}

func (c *Client) cached(ctx context.Context, r pdp.Request) pdp.Decision {
	body, err := encode(r)
	if err != nil {
		return pdp.Denied(pdp.CodeMalformed, "the request for a decision can't be written", err)
	}
	if d, ok := c.cache.get(body); ok {
		return d
	}
	d, final := c.ask(ctx, body)
	d.Revision = c.url
	if final {
		c.cache.put(body, d)
	}
	return d
}

var errBusy = errors.New("too many decisions are waiting for it")

// ask tells by final whether the answer is the PDP's own.
func (c *Client) ask(ctx context.Context, body []byte) (d pdp.Decision, final bool) {
	select {
	case c.inFlight <- struct{}{}:
		defer func() { <-c.inFlight }()
	default:
		return pdp.Gone(c.failed(errBusy)), false
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout) // until the last byte of the answer
	defer cancel()
	answer, err := c.exchange(ctx, body)
	if err != nil {
		var odd *oddAnswer
		if errors.As(err, &odd) {
			return pdp.Denied(pdp.CodeMalformed, "the policy decision point's answer makes no sense", c.failed(err)), false
		}
		return pdp.Gone(c.failed(errors.Join(err, ctx.Err()))), false
	}
	d, err = decode(answer)
	if err != nil {
		return pdp.Denied(pdp.CodeMalformed, "the policy decision point's answer makes no sense", c.failed(err)), false
	}
	return d, true
}

func (c *Client) failed(err error) error { return fmt.Errorf("ask %s: %w", c.url, err) }

// oddAnswer is an answer that came, but not one that counts.
type oddAnswer struct{ what string }

func (e *oddAnswer) Error() string { return e.what }

func (c *Client) exchange(ctx context.Context, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if odd := oddHead(resp); odd != "" {
		return nil, &oddAnswer{odd}
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case len(answer) > MaxAnswer:
		return nil, &oddAnswer{fmt.Sprintf("answer of more than %d bytes", MaxAnswer)}
	}
	return answer, nil
}

// A page of some proxy's in between has status 200 often enough; that it calls itself JSON as well is rare.
func oddHead(resp *http.Response) string {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Sprintf("status %d", resp.StatusCode)
	case err != nil || kind != "application/json":
		return fmt.Sprintf("content type %.64q", resp.Header.Get("Content-Type"))
	}
	return ""
}
