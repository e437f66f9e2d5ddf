// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentrun/rings"
)

// Memory is what a Supervisor may implement besides: it keeps what the tool `memory` puts (`comemory_items`, M-14) beyond the
// run. Whose memory it is follows from the link and from nothing in the request. A Supervisor without it keeps nothing.
type Memory interface {
	Memory(ctx context.Context, q MemoryRequest) (MemoryAnswer, error)
}

// What a MemoryRequest may ask for.
const (
	MemoryList   = "list"
	MemoryPut    = "put"
	MemoryDelete = "delete"
)

// Why a MemoryAnswer refuses.
const (
	MemoryFull    = "full"    // the quota is used up
	MemoryMissing = "missing" // no such item
	MemoryOthers  = "others"  // the item is another author's
)

// Kinds of items. There is none for messages (M-14).
const (
	MemorySummary   = "summary"
	MemoryEmbedding = "embedding"
)

// Bounds of an item (M-14). One of each kind at its largest fits a frame several times.
const (
	MaxMemorySummary   = 4 << 10 // bytes
	MaxMemoryEmbedding = 4096    // numbers
	MaxMemoryTags      = 8
	MaxMemoryTag       = 64 // bytes
	MaxMemoryID        = 64 // bytes
)

// MemoryItem is a summary or an embedding. Author and At are the supervisor's: in a request they count for nothing.
type MemoryItem struct {
	ID        string    `json:"id,omitempty"` // empty in a put: the supervisor gives one
	Kind      string    `json:"kind,omitempty"`
	Summary   string    `json:"summary,omitempty"`
	Embedding []byte    `json:"embedding,omitempty"` // 32-bit floats, little-endian: half the size of numbers in decimal
	Tags      []string  `json:"tags,omitempty"`
	Author    string    `json:"author,omitempty"`
	At        time.Time `json:"at,omitzero"`
}

// MemoryRequest asks for one page of the items by id, or puts or deletes one.
type MemoryRequest struct {
	Op      string     `json:"op"`
	Item    MemoryItem `json:"item,omitzero"`     // put; of delete its ID
	After   string     `json:"after,omitempty"`   // list: items with greater ids
	Version uint64     `json:"version,omitempty"` // list from the beginning: what the asker has already; 0: nothing
}

// MemoryAnswer is the answer. The zero value refuses.
type MemoryAnswer struct {
	Allowed bool         `json:"allowed"`
	Refused string       `json:"refused,omitempty"` // MemoryFull, …; else it is not said why
	Items   []MemoryItem `json:"items,omitempty"`   // list: by id
	More    bool         `json:"more,omitempty"`    // list: there are others after the last
	Same    bool         `json:"same,omitempty"`    // list: nothing has changed since Version, and no items are sent
	ID      string       `json:"id,omitempty"`      // put: the item's
	At      time.Time    `json:"at,omitzero"`       // put: the item's
	Version uint64       `json:"version,omitempty"` // grows by one with each change of this memory
}

// ErrMemory is a request or an item that can't be.
var ErrMemory = errors.New("link: impossible memory request")

// Check holds a request to its form, whoever sent it: a gateway may have been taken over.
func (q MemoryRequest) Check() error {
	switch q.Op {
	case MemoryList:
		if q.After != "" && !memoryID(q.After) {
			return fmt.Errorf("%w: list after what is no id", ErrMemory)
		}
		return nil
	case MemoryPut:
		return q.Item.Check()
	case MemoryDelete:
		if !memoryID(q.Item.ID) {
			return fmt.Errorf("%w: delete of what is no id", ErrMemory)
		}
		return nil
	}
	return fmt.Errorf("%w: op %.20q", ErrMemory, q.Op)
}

func memoryID(s string) bool { return len(s) <= MaxMemoryID && rings.CheckSessionID(s) == nil }

// Check tells whether it is what a memory may hold: a summary or an embedding within bounds, and no transcript (M-14).
func (i MemoryItem) Check() error {
	bad := func(what string) error { return fmt.Errorf("%w: item: %s", ErrMemory, what) }
	switch {
	case i.ID != "" && !memoryID(i.ID):
		return bad("malformed id")
	case i.Kind == MemorySummary && (i.Summary == "" || len(i.Embedding) > 0):
		return bad("a summary without text, or with an embedding")
	case i.Kind == MemoryEmbedding && (i.Summary != "" || len(i.Embedding) == 0):
		return bad("an embedding without numbers, or with text")
	case i.Kind != MemorySummary && i.Kind != MemoryEmbedding:
		return bad("neither summary nor embedding")
	case len(i.Summary) > MaxMemorySummary || !utf8.ValidString(i.Summary):
		return bad("summary too long or not UTF-8")
	case Transcript(i.Summary):
		return bad("raw messages")
	case len(i.Tags) > MaxMemoryTags || slices.ContainsFunc(i.Tags, func(t string) bool { return !MemoryTag(t) }):
		return bad("tags")
	}
	_, err := UnpackEmbedding(i.Embedding)
	return err
}

// MemoryTag tells whether s may be a tag: 1 to MaxMemoryTag bytes that show.
func MemoryTag(s string) bool {
	return s != "" && len(s) <= MaxMemoryTag && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) }) < 0
}

// Transcript tells whether a summary is plainly a conversation as it was: messages in a model API's JSON, or two or more
// lines that begin with a speaker. It catches habit, not intent: nothing tells a summary from a message in other words.
func Transcript(s string) bool {
	if strings.Contains(s, `"role"`) && strings.Contains(s, `"content"`) {
		return true
	}
	spoken := 0
	for line := range strings.Lines(s) {
		speaker, _, named := strings.Cut(strings.ToLower(strings.TrimLeft(line, " \t*#>-[<")), ":")
		if !named {
			continue
		}
		switch strings.TrimRight(speaker, " *]>") {
		case "user", "assistant", "system", "human", "ai", "tool":
			spoken++
		}
	}
	return spoken >= 2
}

// PackEmbedding is the form of an embedding in a MemoryItem.
func PackEmbedding(numbers []float32) []byte {
	var b []byte
	for _, x := range numbers {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// UnpackEmbedding reverses it. Numbers that aren't finite are errors: they would leave the order of a search to chance.
func UnpackEmbedding(b []byte) ([]float32, error) {
	if len(b)%4 != 0 || len(b) > 4*MaxMemoryEmbedding {
		return nil, fmt.Errorf("%w: embedding of %d bytes", ErrMemory, len(b))
	}
	var numbers []float32
	for ; len(b) > 0; b = b[4:] {
		x := math.Float32frombits(binary.LittleEndian.Uint32(b))
		if x-x != 0 {
			return nil, fmt.Errorf("%w: number of an embedding is not finite", ErrMemory)
		}
		numbers = append(numbers, x)
	}
	return numbers, nil
}

// Memory implements the interface of this name. What may have happened when ctx ended isn't known: a put with an id can be put
// again.
func (l *Client) Memory(ctx context.Context, q MemoryRequest) (MemoryAnswer, error) {
	return asked[MemoryAnswer](ctx, l, opMemory, q, nil)
}

var errNoMemory = errors.New("nothing is kept beyond the run here")
