// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"time"
)

// Image is a container image of the daemon's node, unpacked.
type Image struct {
	ID       string    `json:"id"`                 // sha256:… of its configuration
	Names    []string  `json:"names"`              // by which it is meant
	Manifest string    `json:"manifest,omitempty"` // sha256:… of the manifest it came by
	Platform string    `json:"platform"`
	Source   string    `json:"source"`              // registry, oci-layout, oci-archive, docker-archive, sandbox
	SignedBy string    `json:"signed_by,omitempty"` // fingerprint of the key that has signed it
	By       string    `json:"by"`                  // who brought it, as "uid:0"
	Created  time.Time `json:"created"`
	Bytes    int64     `json:"bytes"`
	Files    int64     `json:"files"`
	Live     bool      `json:"live"` // a run uses it
}

// ImageList is what GET /v1/images answers.
type ImageList struct {
	Images []Image `json:"images"`
}

// ImagePull asks for one to be fetched and unpacked.
type ImagePull struct {
	Name      string `json:"name" read:"required"`
	Platform  string `json:"platform,omitempty"`   // as linux/amd64; empty: the daemon's own
	PlainHTTP bool   `json:"plain_http,omitempty"` // of a registry without TLS that is no loopback address
}

// ImageRemoval is the body of DELETE /v1/images.
type ImageRemoval struct {
	Name string `json:"name" read:"required"` // or a digest
}

// ImageRemoved is what became of an image whose name was taken away.
type ImageRemoved struct {
	Gone bool `json:"gone"` // it was its last name
}

// Images lists the images of the daemon's node, the newest first. Of these methods only a daemon's Client has any.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	var l ImageList
	err := c.Ask(ctx, "GET", "/v1/images", nil, &l)
	return l.Images, err
}

// PullImage returns when it is there.
func (c *Client) PullImage(ctx context.Context, p ImagePull) (i Image, err error) {
	return i, c.Ask(ctx, "POST", "/v1/images", p, &i)
}

// RemoveImage takes a name away, and the image with its last one; named by a digest, the image with all of them.
func (c *Client) RemoveImage(ctx context.Context, name string) (r ImageRemoved, err error) {
	return r, c.Ask(ctx, "DELETE", "/v1/images", ImageRemoval{name}, &r)
}
