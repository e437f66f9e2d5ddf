// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"agentrun/internal/upstream"
	"agentrun/safetyloop"
	"agentrun/safetyloop/mcpaql"
)

const (
	hookTime   = 5 * time.Second // for one try
	hookTries  = 3
	hookPause  = time.Second
	hookMinKey = 32 // bytes
	// The signature is over "time.body", so that an old one can't be sent again with another time.
	hookTimeHeader      = "X-Agentrun-Timestamp"
	hookSignatureHeader = "X-Agentrun-Signature"
)

// webhook posts codes to a place of the operators' (S-10). The loop calls it beside the agent's step, which doesn't wait for a far host.
type webhook struct {
	url    *url.URL
	key    []byte
	client *http.Client
}

func newWebhook(address, keyFile string) (*webhook, error) {
	hint := "agentrun safety serve --webhook https://ops.example/codes --webhook-key key"
	u, err := url.Parse(address)
	if err != nil {
		// The error would have the address, and that may have a password.
		return nil, withHint(hint, "--webhook: no address of the web")
	}
	if !upstream.Private(u) || u.Host == "" {
		return nil, withHint(hint, "--webhook: want https, or http to a loopback address")
	}
	if keyFile == "" {
		return nil, withHint(hint, "--webhook-key is missing: without a signature anybody could send codes of their own")
	}
	key, err := mcpaql.ReadPrivate(keyFile)
	if err != nil {
		return nil, fmt.Errorf("--webhook-key: %w", err)
	}
	if key = bytes.TrimSpace(key); len(key) < hookMinKey {
		return nil, withHint("head -c 32 /dev/urandom | base64 > key; chmod 600 key", "--webhook-key: %d bytes, want %d or more", len(key), hookMinKey)
	}
	client := upstream.Client(upstream.Options{AllowPrivate: true, Timeout: hookTime})
	client.Timeout = hookTime
	return &webhook{url: u, key: key, client: client}, nil
}

// Close drops the connection that is kept.
func (h *webhook) Close() error { h.client.CloseIdleConnections(); return nil }

// Show is Channel's.
func (h *webhook) Show(ctx context.Context, c safetyloop.Challenge) error {
	err := h.deliver(ctx, c)
	if err != nil {
		return fmt.Errorf("webhook to %s: %w", h.url.Host, err)
	}
	return nil
}

func (h *webhook) deliver(ctx context.Context, c safetyloop.Challenge) (err error) {
	body, err := json.Marshal(c.Shown())
	if err != nil {
		return errors.New("encode the challenge")
	}
	for try := range hookTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(hookPause):
			}
		}
		if err = h.post(ctx, body); err == nil || time.Now().After(c.Expires) {
			return err
		}
	}
	return err
}

func (h *webhook) post(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("build the request")
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "agentrun-safety/"+version)
	r.Header.Set(hookTimeHeader, at)
	r.Header.Set(hookSignatureHeader, "sha256="+sign(h.key, at, body))
	resp, err := h.client.Do(r)
	if err != nil {
		// Without *url.Error, which has the address.
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}

func sign(key []byte, at string, body []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(at + "."))
	m.Write(body)
	return hex.EncodeToString(m.Sum(nil))
}
