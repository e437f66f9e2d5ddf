// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// H-32: what was written survives the process, and goes on under the same rules.
func TestH32RecordAndRestore(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { now = now.Add(time.Second); return now }
	for _, mode := range []ConsistencyMode{Strong, Causal, Eventual} {
		t.Run(string(mode), func(t *testing.T) {
			c := &conflicts{}
			s := newShared(t, mode, c, clock)
			for i := range 20 {
				w := SharedWrite{Agent: string(rune('a' + i%3)), Key: fmt.Sprint("k", i%4), Value: []byte{byte(i)}}
				if r, err := s.Get(w.Agent, w.Key); err != nil {
					t.Fatal(err)
				} else if mode == Strong {
					w.Version = r.Version
				} else if mode == Causal && i%5 > 0 {
					w.Clock = r.Clock
				}
				if _, err := s.Put(w); err != nil {
					t.Fatal(err)
				}
			}
			text, err := json.Marshal(s.Record())
			if err != nil {
				t.Fatal(err)
			}
			var rec SharedRecord
			if err := json.Unmarshal(text, &rec); err != nil {
				t.Fatal(err)
			}
			back, err := RestoreShared(s.session, rec, s.opt)
			if err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(back.Record())
			if d := cmp.Diff(string(text), string(again)); d != "" || err != nil {
				t.Errorf("restored (-want +got):\n%s%v", d, err)
			}
			// The next write meets what the last one left.
			for _, sh := range []*Shared{s, back} {
				_, err := sh.Put(SharedWrite{Agent: "a", Key: "k0", Value: []byte("x"), Version: map[bool]uint64{true: 1}[mode == Strong]})
				if mode == Strong && !errors.Is(err, ErrVersion) || mode != Strong && err != nil {
					t.Errorf("a write after all: %v", err)
				}
			}
			if back.bytes != s.bytes || back.version != s.version {
				t.Errorf("restored %d bytes, version %d, want %d, %d", back.bytes, back.version, s.bytes, s.version)
			}
		})
	}
}

func TestH32RestoreRefuses(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one := []SharedValue{{Agent: "a", At: at, Value: []byte("v")}}
	known := []SharedValue{{Agent: "a", At: at, Value: []byte("v"), Clock: VectorClock{"a": 2}}}
	for name, tt := range map[string]struct {
		mode ConsistencyMode
		rec  SharedRecord
	}{
		"no values":             {Eventual, SharedRecord{Keys: []SharedKey{{Key: "k"}}}},
		"two values":            {Eventual, SharedRecord{Keys: []SharedKey{{Key: "k", Values: append(one, one...)}}}},
		"empty key":             {Eventual, SharedRecord{Keys: []SharedKey{{Values: one}}}},
		"a key twice":           {Eventual, SharedRecord{Keys: []SharedKey{{Key: "k", Values: one}, {Key: "k", Values: one}}}},
		"a version":             {Eventual, SharedRecord{Version: 1, Keys: []SharedKey{{Key: "k", Values: one, Version: 1}}}},
		"no version":            {Strong, SharedRecord{Version: 1, Keys: []SharedKey{{Key: "k", Values: one}}}},
		"a version never given": {Strong, SharedRecord{Version: 1, Keys: []SharedKey{{Key: "k", Values: one, Version: 2}}}},
		"no clock":              {Causal, SharedRecord{Keys: []SharedKey{{Key: "k", Values: one}}}},
		"a clock ahead":         {Causal, SharedRecord{Keys: []SharedKey{{Key: "k", Values: known, Seen: VectorClock{"a": 1}}}}},
		"nobody's":              {Eventual, SharedRecord{Keys: []SharedKey{{Key: "k", Values: []SharedValue{{At: at}}}}}},
		"too large":             {Eventual, SharedRecord{Keys: []SharedKey{{Key: "k", Values: []SharedValue{{Agent: "a", Value: make([]byte, MaxSharedValueBytes+1)}}}}}},
	} {
		opt := SharedOptions{Clock: time.Now, Conflict: func(SharedResult) error { return nil }}
		if _, err := RestoreShared(activeSession(t, tt.mode), tt.rec, opt); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}
