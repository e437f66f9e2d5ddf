// SPDX-License-Identifier: Apache-2.0

package images

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
)

// Order is what Program is to do, as JSON on its standard input. All that decides is in it: it reads no configuration.
type Order struct {
	Into      string   `json:"into"` // the folder that New has made
	Pull      string   `json:"pull,omitempty"`
	Import    string   `json:"import,omitempty"` // a file or folder
	Name      string   `json:"name,omitempty"`   // of an import; empty: those it has
	Platform  string   `json:"platform"`
	PlainHTTP bool     `json:"plain_http,omitempty"`
	Key       string   `json:"key,omitempty"` // public key in PEM that must have signed it; empty: none
	Allow     []string `json:"allow,omitempty"`
	Owners    bool     `json:"owners"` // files get the archive's
	Progress  bool     `json:"progress"`
	Bar       bool     `json:"bar"`
	Agent     string   `json:"agent"` // what it says to registries that it is
	Bases     []Base   `json:"bases,omitempty"`
}

// Base is an image that is here, which another one may begin with.
type Base struct {
	ID      string `json:"id"`
	Chain   string `json:"chain"` // Chain of its layers
	Content Counts `json:"content"`
}

// Chain stands for layers in their order, by the digests of their content (diff_ids).
func Chain(diffIDs []string) string {
	sum := sha256.Sum256([]byte(strings.Join(diffIDs, " ")))
	return hex.EncodeToString(sum[:])
}

// Result is what it has done, as JSON on its standard output. What is wrong it says on standard error itself.
type Result struct {
	Image Image    `json:"image"`
	Names []string `json:"names"`
	Chain string   `json:"chain"`          // of its layers
	Base  string   `json:"base,omitempty"` // of which the first layers are: the tree has those above it alone
	Delta *Delta   `json:"delta,omitempty"`
}

// Delta is what layers do to the image below them that their tree doesn't show. Names are paths in the image.
type Delta struct {
	Hidden  []Name `json:"hidden,omitempty"`  // they take it away with all that is in it; with a slash behind it, only that
	Folders []Name `json:"folders,omitempty"` // are in the tree, and as they are below, if they are there
	Through []Name `json:"through,omitempty"` // must be folders below, if anything
	Files   []Name `json:"files,omitempty"`   // must be files below: links to them were made, whatever became of those
	Links   []Link `json:"links,omitempty"`
	Deleted []Name `json:"deleted,omitempty"` // of Hidden: a deletion means it, and is counted where it isn't below
}

// Link is a hard link to a file below; the tree has a file in its place.
type Link struct {
	Name Name `json:"name"`
	To   Name `json:"to"`
}

// MaxDelta bounds one, as JSON. What has a larger one is unpacked whole.
const MaxDelta = 32 << 20

// Name is a path of any bytes, which JSON's strings don't take.
type Name string

// MarshalText implements encoding.TextMarshaler.
func (n Name) MarshalText() ([]byte, error) { return []byte(url.PathEscape(string(n))), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Name) UnmarshalText(text []byte) error {
	s, err := url.PathUnescape(string(text))
	*n = Name(s)
	return err
}
