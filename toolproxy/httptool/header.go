// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"net/http"
	"net/textproto"
	"slices"

	"golang.org/x/net/http/httpguts"

	"agentrun/internal/read"
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

// Secrets finds a secret by its name under secrets:.
type Secrets func(name string) (string, bool)

const maxHeaders = 32

// Headers resolves the headers of an upstream. The Hider masks the secrets among them. Errors name headers and secrets, never
// values.
func Headers(written map[string]HeaderValue, secrets Secrets) (http.Header, *Hider, error) {
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
