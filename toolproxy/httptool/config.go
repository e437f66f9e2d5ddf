// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"context"
	"net/http"
	"net/url"

	"agentrun/internal/read"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/tools"
)

// Config is the `http:` section of a tool.
type Config struct {
	URL    string `yaml:"url"`    // with {name} placeholders in the path
	Method string `yaml:"method"` // default: GET if send is query or none, else POST
	Send   string `yaml:"send"`   // arguments that aren't in the path: json, query or none; default by the method
	Reply  string `yaml:"reply"`  // json (default) or text
	Follow bool   `yaml:"follow"` // redirects on the same scheme, host and port
	Server
}

// Options are what tools of this kind are given by the gateway. The zero value works, but has no secrets.
type Options struct {
	Secrets     Secrets
	Traceparent func(ctx context.Context) string // W3C trace context for the upstream; nil or "": none
}

// Factory makes HTTP tools for the registry's `http:` sections. It reads ca_file, so it runs before privileges are dropped.
func Factory(o Options) tools.Factory {
	return func(_ string, n *read.Node) (tools.Tool, error) {
		var c Config
		n.Into(&c)
		t, err := New(c, o)
		if err := n.Done(err); err != nil {
			return nil, err
		}
		return t, nil
	}
}

// New checks a configuration and makes its tool.
func New(c Config, o Options) (*Tool, error) {
	t := &Tool{config: c, trace: o.Traceparent}
	var err error
	if t.url, err = parseTemplate(c.URL); err != nil {
		return nil, err
	}
	if t.config, err = c.withDefaults(); err != nil {
		return nil, err
	}
	if t.client, t.headers, t.hide, err = c.Server.Client(t.url.base.Scheme, o.Secrets); err != nil {
		return nil, err
	}
	t.client.CheckRedirect = t.redirect
	return t, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Method == "" {
		c.Method = http.MethodPost
		if c.Send == sendQuery || c.Send == sendNone {
			c.Method = http.MethodGet
		}
	}
	if _, err := egress.ParseMethod(c.Method); err != nil || c.Method == http.MethodConnect || c.Method == http.MethodTrace || c.Method == http.MethodHead {
		return c, read.Bad("method", "is GET, POST, PUT, PATCH, DELETE or another in capitals that has a reply")
	}
	if c.Send == "" {
		c.Send = sendJSON
		if c.Method == http.MethodGet || c.Method == http.MethodDelete {
			c.Send = sendQuery
		}
	}
	if c.Reply == "" {
		c.Reply = replyJSON
	}
	switch {
	case c.Send != sendJSON && c.Send != sendQuery && c.Send != sendNone:
		return c, read.Bad("send", "is json, query or none")
	case c.Send == sendJSON && c.Method == http.MethodGet:
		return c, read.Bad("send", "a GET has no body; use query")
	case c.Reply != replyJSON && c.Reply != replyText:
		return c, read.Bad("reply", "is json or text")
	}
	return c, nil
}

const (
	sendJSON  = "json"
	sendQuery = "query"
	sendNone  = "none"
	replyJSON = "json"
	replyText = "text"
)

// redirect never follows to another origin: whoever can make the upstream redirect would choose where the secret goes.
func (t *Tool) redirect(req *http.Request, via []*http.Request) error {
	if !t.config.Follow || len(via) > 5 || !sameOrigin(req.URL, &t.url.base) || req.URL.User != nil {
		return http.ErrUseLastResponse
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }
