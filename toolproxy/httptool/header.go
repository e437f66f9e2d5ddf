// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"net/http"
	"net/textproto"
	"slices"

	"golang.org/x/net/http/httpguts"

	"agentrun/internal/read"
	"agentrun/internal/upstream"
	"agentrun/telemetry/mask"
)

// HeaderValue is a header as an operator writes it: text, or {secret: NAME, prefix: TEXT}.
type HeaderValue struct {
	Text   string
	Secret string // name under secrets:
	Prefix string // before the secret, for instance "Bearer "
}

// ReadNode reads both forms.
func (h *HeaderValue) ReadNode(n *read.Node) {
	if n.Scalar() {
		n.Into(&h.Text)
		return
	}
	var s struct {
		Secret string `yaml:"secret"`
		Prefix string `yaml:"prefix"`
	}
	if n.Into(&s); s.Secret == "" {
		_ = n.Done(read.Bad("secret", "names no secret")) // whoever reads the whole is told
	}
	h.Secret, h.Prefix = s.Secret, s.Prefix
}

// Server is what an upstream is reached with, of HTTP tools and MCP servers alike.
type Server struct {
	Headers      map[string]HeaderValue `yaml:"headers"`       // sent with each call
	CAFile       string                 `yaml:"ca_file"`       // PEM; the only authorities then
	AllowPrivate bool                   `yaml:"allow_private"` // it is in a private network or on this host
}

// Client returns a client for a server at a URL of that scheme, the headers of its requests, and what takes
// their secrets out of its answers. The error names the key.
func (s Server) Client(scheme string, secrets Secrets) (*http.Client, http.Header, *Hider, error) {
	headers, hide, err := resolve(s.Headers, secrets)
	if err != nil {
		return nil, nil, nil, err
	}
	if hide != nil && scheme == "http" && !s.AllowPrivate {
		return nil, nil, nil, read.Bad("url", "http:// would send the secret in the clear; "+
			"write https://, or allow_private for a place of your own")
	}
	roots, err := upstream.Roots(s.CAFile)
	if err != nil {
		return nil, nil, nil, read.Under("ca_file", err)
	}
	o := upstream.Options{AllowPrivate: s.AllowPrivate, Roots: roots, MaxConns: 64, Unpack: true}
	return upstream.Client(o), headers, hide, nil
}

// Secrets finds a secret by its name under secrets:.
type Secrets func(name string) (string, bool)

const maxHeaders = 32

// resolve gives headers their values. The Hider masks the secrets among them. Errors name headers and secrets, never
// values.
func resolve(written map[string]HeaderValue, secrets Secrets) (http.Header, *Hider, error) {
	if len(written) > maxHeaders {
		return nil, nil, read.Bad("headers", "%d, at most %d are allowed", len(written), maxHeaders)
	}
	out := http.Header{}
	var known []string
	for name, h := range written {
		key := textproto.CanonicalMIMEHeaderKey(name)
		value := h.Text
		if h.Secret != "" {
			if secrets == nil {
				secrets = func(string) (string, bool) { return "", false }
			}
			secret, found := secrets(h.Secret)
			if !found {
				return nil, nil, read.Bad("headers."+name, "there is no secret %s", h.Secret)
			}
			if len(secret) < mask.MinKnown {
				return nil, nil, read.Bad("headers."+name, "secret %s is shorter than %d bytes and couldn't be masked in replies", h.Secret, mask.MinKnown)
			}
			value = h.Prefix + secret
			known = append(known, formsOf(h.Prefix, secret)...)
		}
		switch {
		case !httpguts.ValidHeaderFieldName(name) || len(out[key]) > 0:
			return nil, nil, read.Bad("headers."+name, "no header name, or given twice")
		case !httpguts.ValidHeaderFieldValue(value):
			return nil, nil, read.Bad("headers."+name, "has characters that no header may have")
		case slices.Contains([]string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Keep-Alive", "Proxy-Connection", "Accept-Encoding"}, key):
			return nil, nil, read.Bad("headers."+name, "is the proxy's own")
		}
		out[key] = []string{value}
	}
	return out, NewHider(known), nil
}
