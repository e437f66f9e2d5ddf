// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Appender is what writes records: a Log on disk, or a Memory.
type Appender interface {
	// Append writes the record, so that a crash of this program doesn't lose it.
	Append(Record) (Entry, error)
	// AppendSync returns when a crash of the machine doesn't lose it either.
	AppendSync(Record) (Entry, error)
}

// Head is the end of a chain.
type Head struct {
	Size int64 // entries; the last has the number Size-1
	Hash Hash  // of the last entry; zeros for an empty chain
}

// add links the data to the head and writes its line to b.
func (h *Head) add(b []byte, chain string, now time.Time, kind Kind, data []byte) ([]byte, Entry, error) {
	e := Entry{Chain: chain, Kind: kind, PrevHash: h.Hash, Seq: h.Size, Time: now.UTC().Round(0)}
	n := len(b)
	b, err := appendLine(b, &e, data)
	if err != nil {
		return b, Entry{}, err
	}
	if len(b)-n > MaxLine {
		return b[:n], Entry{}, errTooLong
	}
	h.Size, h.Hash = h.Size+1, e.Hash
	return b, e, nil
}

// Memory is a chain without a disk: for tests, and for decisions that are simulated. It may be used by many goroutines.
type Memory struct {
	chain string
	now   func() time.Time

	mu    sync.Mutex
	head  Head
	lines [][]byte
}

var _ Appender = (*Memory)(nil)

// NewMemory makes an empty chain; now is its clock, nil means time.Now.
func NewMemory(chain string, now func() time.Time) (*Memory, error) {
	if err := checkChain(chain); err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	return &Memory{chain: chain, now: now}, nil
}

// Append implements Appender. After an error the chain is as it was.
func (m *Memory) Append(r Record) (Entry, error) {
	if r == nil {
		return Entry{}, errNoRecord
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data, err := appendData(nil, r)
	if err != nil {
		return Entry{}, err
	}
	line, e, err := m.head.add(nil, m.chain, m.now(), r.Kind(), data)
	if err != nil {
		return Entry{}, err
	}
	m.lines = append(m.lines, line)
	e.Data = r
	return e, nil
}

// AppendSync implements Appender; there is nothing to sync.
func (m *Memory) AppendSync(r Record) (Entry, error) { return m.Append(r) }

// Head gives the end of the chain.
func (m *Memory) Head() Head {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.head
}

// Lines gives the chain as the file would have it.
func (m *Memory) Lines() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Concat(m.lines...)
}

var errNoRecord = errors.New("no record")
