// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// What the tool `memory` keeps beyond a run (`comemory_items`, M-14): an item a key, in memoryBucket, below its scope; and an
// account of each scope, which changes with it. Names of agents, sessions and items have no slash, so no scope's keys begin
// with another's.
const (
	memoryBucket  = "comemory"
	accountBucket = "comemory-scopes"

	agentScope   = "agent/"
	sessionScope = "session/"
)

// Quotas of a scope: an agent's own memory, or a session's.
const (
	MaxMemoryItems = 1000
	MaxMemoryBytes = 4 << 20 // of texts and numbers, as memoryRecord.size counts
)

const (
	// memoryPage is how much of a list goes into one answer, in bytes of JSON: what is longer than link.MaxFrame would end the
	// link, and with it the run. The largest item, all of its characters escaped, has less than a third of it.
	memoryPage = 96 << 10
	// memoryTime is what the tool's category gives a call (M-11): who asked isn't there any more.
	memoryTime = 2 * time.Second
	memoryTool = "memory"
)

// memoryRecord is what the store keeps of an item. There is no place for a message.
type memoryRecord struct {
	Kind      string    `json:"kind"`
	Summary   string    `json:"summary,omitempty"`
	Embedding []byte    `json:"embedding,omitempty"`
	Tags      []string  `json:"tags,omitempty"`
	Author    string    `json:"author"`
	At        time.Time `json:"at"`
}

// size is what a record counts against the quota, its key and form included.
func (r memoryRecord) size(id string) int64 {
	n := len(id) + len(r.Summary) + len(r.Embedding) + len(r.Author)
	for _, tag := range r.Tags {
		n += len(tag)
	}
	return int64(n) + 64
}

func (r memoryRecord) item(id string) link.MemoryItem {
	return link.MemoryItem{ID: id, Kind: r.Kind, Summary: r.Summary, Embedding: r.Embedding, Tags: r.Tags, Author: r.Author, At: r.At}
}

// memoryAccount is a scope's. It stays when the scope is empty: a version must never come again.
type memoryAccount struct {
	Items   int64  `json:"items"`
	Bytes   int64  `json:"bytes"`
	Last    uint64 `json:"last"`    // number of the last id given
	Version uint64 `json:"version"` // of the last change
}

// memoryScope is whose memory a run works with: its session's, which the participants share, else its agent's. The gateway has
// no say in it.
func (adm Admission) memoryScope() (string, error) {
	switch {
	case adm.Agent == "":
		return "", errors.New("a run without agent has no memory that lives on")
	case adm.Session != "":
		return sessionScope + adm.Session + "/", nil
	}
	return agentScope + adm.Agent + "/", nil
}

// memory is a scope as its author sees it.
type memory struct {
	scope  string
	author string
	now    func() time.Time
}

func (m memory) answer(transact func(func(*store.Tx) error) error, q link.MemoryRequest) (a link.MemoryAnswer, err error) {
	do := map[string]func(*store.Tx, link.MemoryRequest) (link.MemoryAnswer, error){
		link.MemoryList: m.list, link.MemoryPut: m.put, link.MemoryDelete: m.remove,
	}[q.Op]
	err = transact(func(tx *store.Tx) (err error) {
		a, err = do(tx, q)
		return err
	})
	if err != nil {
		return link.MemoryAnswer{}, fmt.Errorf("memory %s: %w", strings.TrimSuffix(m.scope, "/"), err)
	}
	return a, nil
}

func (m memory) account(tx *store.Tx) (a memoryAccount, err error) {
	_, err = store.GetJSON(tx.Bucket(accountBucket), m.scope, &a)
	if err == nil && (a.Items < 0 || a.Bytes < 0) {
		err = fmt.Errorf("account of %d items, %d bytes: %w", a.Items, a.Bytes, store.ErrDecode)
	}
	return a, err
}

// errPage ends a page.
var errPage = errors.New("the page is full")

func (m memory) list(tx *store.Tx, q link.MemoryRequest) (link.MemoryAnswer, error) {
	account, err := m.account(tx)
	if err != nil {
		return link.MemoryAnswer{}, err
	}
	a := link.MemoryAnswer{Allowed: true, Version: account.Version}
	if q.After == "" && q.Version != 0 && q.Version == account.Version {
		a.Same = true
		return a, nil
	}
	size := 0
	b := tx.Bucket(memoryBucket)
	err = b.EachAfter(m.scope, m.scope+q.After, func(key string, raw []byte) error {
		id := key[len(m.scope):]
		if size += len(id) + len(`"id":"",`) + len(raw) + len(","); size > memoryPage && len(a.Items) > 0 {
			a.More = true
			return errPage
		}
		var r memoryRecord
		if _, err := store.GetJSON(b, key, &r); err != nil {
			return err
		}
		a.Items = append(a.Items, r.item(id))
		return nil
	})
	if err != nil && !errors.Is(err, errPage) {
		return link.MemoryAnswer{}, err
	}
	return a, nil
}

func (m memory) put(tx *store.Tx, q link.MemoryRequest) (link.MemoryAnswer, error) {
	account, err := m.account(tx)
	if err != nil {
		return link.MemoryAnswer{}, err
	}
	b := tx.Bucket(memoryBucket)
	id := q.Item.ID
	for free := id != ""; !free; {
		account.Last++ // on past ids that an agent took itself; each is skipped once
		id = "m" + strconv.FormatUint(account.Last, 10)
		_, taken, err := b.Get(m.scope + id)
		if err != nil {
			return link.MemoryAnswer{}, err
		}
		free = !taken
	}
	var old memoryRecord
	replaces, err := store.GetJSON(b, m.scope+id, &old)
	if err != nil {
		return link.MemoryAnswer{}, err
	}
	if replaces && old.Author != m.author {
		return link.MemoryAnswer{Refused: link.MemoryOthers}, nil
	}
	i := q.Item
	r := memoryRecord{Kind: i.Kind, Summary: i.Summary, Embedding: i.Embedding, Tags: i.Tags, Author: m.author, At: m.now().UTC()}
	more := r.size(id)
	if replaces {
		more -= old.size(id)
		account.Items--
		account.Bytes -= old.size(id)
	}
	account.Items++
	account.Bytes += r.size(id)
	account.Version++
	if account.Items > MaxMemoryItems || account.Bytes > MaxMemoryBytes {
		return link.MemoryAnswer{Refused: link.MemoryFull}, nil
	}
	if room, err := m.leavesRoom(tx, more, !replaces, account); err != nil || !room {
		return link.MemoryAnswer{Refused: link.MemoryFull}, err
	}
	if err := store.PutJSON(b, m.scope+id, r); err != nil {
		return link.MemoryAnswer{}, err
	}
	return link.MemoryAnswer{Allowed: true, ID: id, At: r.At, Version: account.Version}, store.PutJSON(tx.Bucket(accountBucket), m.scope, account)
}

// leavesRoom counts for the author what a put adds, and refuses by which its items would come to more than is free: of a session's memory
// each participant leaves the others some. Nobody else shares one. What doesn't grow is never refused.
func (m memory) leavesRoom(tx *store.Tx, more int64, isNew bool, all memoryAccount) (bool, error) {
	if !strings.HasPrefix(m.scope, sessionScope) {
		return true, nil
	}
	own, err := m.own(tx)
	if err != nil {
		return false, err
	}
	own.Bytes += more
	if isNew {
		own.Items++
	}
	if isNew && own.Items+all.Items > MaxMemoryItems || more > 0 && own.Bytes+all.Bytes > MaxMemoryBytes {
		return false, nil
	}
	return true, store.PutJSON(tx.Bucket(accountBucket), m.scope+m.author, own)
}

// own is what the author's items in a session's memory come to. Those that were put before it was kept are counted once.
func (m memory) own(tx *store.Tx) (own memoryAccount, err error) {
	found, err := store.GetJSON(tx.Bucket(accountBucket), m.scope+m.author, &own)
	if err != nil || found {
		return own, err
	}
	err = store.EachJSON(tx.Bucket(memoryBucket), m.scope, func(key string, r memoryRecord) error {
		if r.Author == m.author {
			own.Items++
			own.Bytes += r.size(key[len(m.scope):])
		}
		return nil
	})
	return own, err
}

func (m memory) remove(tx *store.Tx, q link.MemoryRequest) (link.MemoryAnswer, error) {
	var r memoryRecord
	found, err := store.GetJSON(tx.Bucket(memoryBucket), m.scope+q.Item.ID, &r)
	switch {
	case err != nil:
		return link.MemoryAnswer{}, err
	case !found:
		return link.MemoryAnswer{Refused: link.MemoryMissing}, nil
	case r.Author != m.author:
		return link.MemoryAnswer{Refused: link.MemoryOthers}, nil
	}
	version, err := m.drop(tx, q.Item.ID, r)
	return link.MemoryAnswer{Allowed: err == nil, Version: version}, err
}

func (m memory) drop(tx *store.Tx, id string, r memoryRecord) (version uint64, err error) {
	account, err := m.account(tx)
	if err != nil {
		return 0, err
	}
	account.Items--
	account.Bytes -= r.size(id)
	account.Version++
	if strings.HasPrefix(m.scope, sessionScope) {
		m.author = r.Author // an operator may have it deleted
		own, err := m.own(tx)
		if err != nil {
			return 0, err
		}
		own.Items--
		own.Bytes -= r.size(id)
		if err := store.PutJSON(tx.Bucket(accountBucket), m.scope+m.author, own); err != nil {
			return 0, err
		}
	}
	if err := tx.Bucket(memoryBucket).Delete(m.scope + id); err != nil {
		return 0, err
	}
	return account.Version, store.PutJSON(tx.Bucket(accountBucket), m.scope, account)
}

// MemoryEntry is an item as an operator sees it.
type MemoryEntry struct {
	Session string `json:"session_id,omitempty"` // whose memory it is in; empty: the agent's own
	link.MemoryItem
}

// AgentMemory returns everything that an agent has put into a memory, its own and those of sessions.
func (h *Hypervisor) AgentMemory(ctx context.Context, agent string) ([]MemoryEntry, error) {
	if err := rings.CheckAgentID(agent); err != nil {
		return nil, err
	}
	entries := []MemoryEntry{}
	err := h.view(ctx, func(tx *store.Tx) error {
		return eachOf(tx, agent, func(scope, id string, r memoryRecord) error {
			session, _ := strings.CutPrefix(strings.TrimSuffix(scope, "/"), sessionScope)
			if strings.HasPrefix(scope, agentScope) {
				session = ""
			}
			entries = append(entries, MemoryEntry{session, r.item(id)})
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("memory of agent %.256s: %w", agent, err)
	}
	return entries, nil
}

// eachOf goes through what an agent has put.
func eachOf(tx *store.Tx, agent string, fn func(scope, id string, r memoryRecord) error) error {
	for _, prefix := range []string{agentScope + agent + "/", sessionScope} {
		err := store.EachJSON(tx.Bucket(memoryBucket), prefix, func(key string, r memoryRecord) error {
			if r.Author != agent {
				return nil
			}
			cut := strings.LastIndexByte(key, '/') + 1
			return fn(key[:cut], key[cut:], r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ErrNoMemory is an item that isn't there.
var ErrNoMemory = errors.New("no such memory item")

// DeleteMemory deletes what an agent has put under an id, or, for "", everything it has put, and returns how many items that
// were. Runs of the agent that live no longer see them.
func (h *Hypervisor) DeleteMemory(ctx context.Context, agent, id string) (n int, err error) {
	if err := rings.CheckAgentID(agent); err != nil {
		return 0, err
	}
	err = h.update(ctx, func(tx *store.Tx) error {
		n = 0
		return eachOf(tx, agent, func(scope, key string, r memoryRecord) error {
			if id != "" && key != id {
				return nil
			}
			n++
			_, err := memory{scope: scope}.drop(tx, key, r)
			return err
		})
	})
	if err == nil && n == 0 && id != "" {
		err = fmt.Errorf("%w: %.64q", ErrNoMemory, id)
	}
	if err != nil {
		return 0, fmt.Errorf("memory of agent %.256s: %w", agent, err)
	}
	return n, nil
}
