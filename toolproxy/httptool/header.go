// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"

	"agentrun/telemetry/mask"
	"agentrun/toolproxy/httptool/section"
)

// HeaderValue is a header as an operator writes it: text, or {secret: NAME, prefix: TEXT}.
type HeaderValue struct {
	Text   string
	Secret string // name under secrets:
	Prefix string // before the secret, for instance "Bearer "
}

// UnmarshalYAML reads both forms.
func (h *HeaderValue) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&h.Text)
	}
	var s struct {
		Secret string `yaml:"secret"`
		Prefix string `yaml:"prefix"`
	}
	if err := section.Decode("header", node, &s); err != nil {
		return err
	}
	if s.Secret == "" {
		return errors.New("header: secret names no secret")
	}
	h.Secret, h.Prefix = s.Secret, s.Prefix
	return nil
}

// Secrets finds a secret by its name under secrets:.
type Secrets func(name string) (string, bool)

const maxHeaders = 32

// Headers resolves the headers of an upstream. The Hider masks the secrets among them. Errors name headers and secrets, never
// values.
func Headers(written map[string]HeaderValue, secrets Secrets) (http.Header, *Hider, error) {
	if len(written) > maxHeaders {
		return nil, nil, fmt.Errorf("headers: %d, at most %d are allowed", len(written), maxHeaders)
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
				return nil, nil, fmt.Errorf("headers.%s: there is no secret %s", name, h.Secret)
			}
			if len(secret) < mask.MinKnown {
				return nil, nil, fmt.Errorf("headers.%s: secret %s is shorter than %d bytes and couldn't be masked in replies", name, h.Secret, mask.MinKnown)
			}
			value = h.Prefix + secret
			known = append(known, formsOf(h.Prefix, secret)...)
		}
		switch {
		case !httpguts.ValidHeaderFieldName(name) || len(out[key]) > 0:
			return nil, nil, fmt.Errorf("headers.%s: no header name, or given twice", name)
		case !httpguts.ValidHeaderFieldValue(value):
			return nil, nil, fmt.Errorf("headers.%s: has characters that no header may have", name)
		case slices.Contains([]string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Keep-Alive", "Proxy-Connection", "Accept-Encoding"}, key):
			return nil, nil, fmt.Errorf("headers.%s: is the proxy's own", name)
		}
		out[key] = []string{value}
	}
	return out, NewHider(known), nil
}
