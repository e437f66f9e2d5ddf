// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"cmp"
	"fmt"
	"slices"

	"agentrun/store"
)

// BlockIn gives the block of a principal, or nil, as a transaction over the store of the loops sees it: for
// who decides by more of the state than that, such as whether a run may begin. An error means what ErrUnread
// does: it counts as stopped.
func BlockIn(tx *store.Tx, principal string) (*Block, error) {
	all, err := blocksIn(tx)
	if b, is := all[principal]; is && err == nil {
		return &Block{Agent: b.Agent, Reason: b.Reason, Since: b.Since}, nil
	}
	return nil, err
}

// BlocksIn lists all of them, oldest first. Challenges are in the memory of loops and not in it.
func BlocksIn(tx *store.Tx) ([]Block, error) {
	all, err := blocksIn(tx)
	if err != nil {
		return nil, err
	}
	list := []Block{}
	for _, b := range all {
		list = append(list, Block{Agent: b.Agent, Reason: b.Reason, Since: b.Since})
	}
	sortBlocks(list)
	return list, nil
}

func sortBlocks(list []Block) {
	slices.SortFunc(list, func(a, b Block) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Agent, b.Agent)) })
}

// blocksIn reads all of them. One record that can't be read makes the whole list unreadable (ErrUnread),
// because it might be anybody's.
func blocksIn(tx *store.Tx) (map[string]block, error) {
	all := map[string]block{}
	err := store.EachJSON(tx.Bucket(blocksBucket), "", func(key string, b block) error {
		if key != b.Principal || b.Since.IsZero() || b.Agent == "" {
			return fmt.Errorf("block of %.80q: %w", key, store.ErrDecode)
		}
		all[key] = b
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnread, err)
	}
	return all, nil
}

// Follow makes the loop know a sandbox's agent before its first call, so that Sync brings it in line with the
// store from then on: a run of an agent that another process stops has made no call here. Forget ends it.
func (l *Loop) Follow(c Caller) error {
	if !validPrincipal(c.Principal) || !c.Bound {
		return fmt.Errorf("%w: no sandbox's agent", ErrSetting)
	}
	p, err := l.enter(c)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.users--
	p.used = l.now()
	return nil
}
