// SPDX-License-Identifier: Apache-2.0

// Package storetest holds what every store.Store must do, and a Store that breaks on request.
//
//	func TestDB(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) store.Store { … })
//	}
//
// It is for tests only. It doesn't test what only files can do: being shared by processes, modes, damage.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentrun/store"
)

// Run runs the suite; open gives a new, empty store each time.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for name, test := range map[string]func(*testing.T, store.Store){
		"kept and dropped": keptAndDropped, "view": view, "order": order, "limits": limits, "ended": ended,
		"copies": copies, "json": strictJSON, "write while listing": writeWhileListing, "one at a time": oneAtATime,
		"context": givesUp, "locks": locks, "like a map": likeAMap,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer func() { _ = s.Close() }()
			test(t, s)
		})
	}
}

func put(t *testing.T, s store.Store, bucket, key, value string) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.Bucket(bucket).Put(key, []byte(value)) }); err != nil {
		t.Fatal(err)
	}
}

func list(t testing.TB, s store.Store, bucket, prefix string) (pairs []string) {
	t.Helper()
	err := s.View(context.Background(), func(tx *store.Tx) error {
		return tx.Bucket(bucket).Each(prefix, func(k string, v []byte) error {
			pairs = append(pairs, k+"="+string(v))
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return pairs
}

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func keptAndDropped(t *testing.T, s store.Store) {
	put(t, s, "b", "k", "1")
	boom := errors.New("boom")
	change := func(tx *store.Tx) {
		_ = tx.Bucket("b").Put("k", []byte("2"))
		_ = tx.Bucket("b").Delete("k")
		_ = tx.Bucket("b").Put("new", []byte("3"))
		_ = tx.Bucket("other").Put("k", []byte("4"))
	}
	if err := s.Update(t.Context(), func(tx *store.Tx) error { change(tx); return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v, want the function's own error", err)
	}
	want(t, list(t, s, "b", ""), "k=1")
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("panic %v, want the function's own", p)
			}
		}()
		_ = s.Update(t.Context(), func(tx *store.Tx) error { change(tx); panic("boom") })
	}()
	want(t, list(t, s, "b", ""), "k=1")
	want(t, list(t, s, "other", ""))
}

func view(t *testing.T, s store.Store) {
	put(t, s, "b", "k", "1")
	err := s.View(t.Context(), func(tx *store.Tx) error {
		if err := tx.Bucket("b").Delete("k"); !errors.Is(err, store.ErrReadOnly) {
			t.Errorf("delete: got %v", err)
		}
		if _, found, err := tx.Bucket("none").Get("k"); found || err != nil {
			t.Errorf("bucket that isn't there: got %v, %v", found, err)
		}
		return tx.Bucket("b").Put("k", []byte("2"))
	})
	if !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("put: got %v", err)
	}
	want(t, list(t, s, "b", ""), "k=1")
}

func order(t *testing.T, s store.Store) {
	for _, k := range []string{"b/2", "a", "b/10", "b", "c", "b/\xff"} {
		put(t, s, "x", k, "")
	}
	want(t, list(t, s, "x", ""), "a=", "b=", "b/10=", "b/2=", "b/\xff=", "c=")
	want(t, list(t, s, "x", "b/"), "b/10=", "b/2=", "b/\xff=")
	want(t, list(t, s, "x", "d"))
	for after, then := range map[string][]string{
		"": {"b/10", "b/2", "b/\xff"}, "a": {"b/10", "b/2", "b/\xff"}, "b/1": {"b/10", "b/2", "b/\xff"}, "b/10": {"b/2", "b/\xff"}, "b/\xff": nil, "c": nil,
	} {
		var got []string
		err := s.View(t.Context(), func(tx *store.Tx) error {
			return tx.Bucket("x").EachAfter("b/", after, func(k string, _ []byte) error { got = append(got, k); return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, got, then...)
	}
	put(t, s, "y", "b/1", "one")
	put(t, s, "y", "b/2", "")
	put(t, s, "y", "c", "more")
	for prefix, sizes := range map[string][]string{"": {"b/1 3", "b/2 0", "c 4"}, "b/": {"b/1 3", "b/2 0"}, "d": nil} {
		var got []string
		err := s.View(t.Context(), func(tx *store.Tx) error {
			return tx.Bucket("y").Sizes(prefix, func(k string, size int) error { got = append(got, fmt.Sprint(k, " ", size)); return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, got, sizes...)
	}
}

func limits(t *testing.T, s store.Store) {
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		for name, err := range map[string]error{
			"empty bucket":    tx.Bucket("").Put("k", nil),
			"reserved bucket": tx.Bucket("store").Put("schema", []byte("9")),
			"long bucket":     tx.Bucket(strings.Repeat("b", store.MaxBucketName+1)).Put("k", nil),
			"empty key":       tx.Bucket("b").Put("", nil),
			"long key":        tx.Bucket("b").Put(strings.Repeat("k", store.MaxKey+1), nil),
			"long value":      tx.Bucket("b").Put("k", make([]byte, store.MaxValue+1)),
		} {
			if !errors.Is(err, store.ErrLimit) {
				t.Errorf("%s: got %v, want ErrLimit", name, err)
			}
		}
		return tx.Bucket(strings.Repeat("b", store.MaxBucketName)).Put(strings.Repeat("k", store.MaxKey), make([]byte, store.MaxValue))
	})
	if err != nil {
		t.Errorf("at the limits: %v", err)
	}
}

func ended(t *testing.T, s store.Store) {
	put(t, s, "b", "k", "1")
	var kept *store.Bucket
	if err := s.Update(t.Context(), func(tx *store.Tx) error { kept = tx.Bucket("b"); return nil }); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*store.Bucket{"ended": kept, "zero": {}, "zero Tx": new(store.Tx).Bucket("b")} {
		if _, found, err := b.Get("k"); found || !errors.Is(err, store.ErrEnded) {
			t.Errorf("%s: get: got %v, %v", name, found, err)
		}
		if err := b.Put("k", nil); !errors.Is(err, store.ErrEnded) {
			t.Errorf("%s: put: got %v", name, err)
		}
		if err := b.Each("", func(string, []byte) error { return nil }); !errors.Is(err, store.ErrEnded) {
			t.Errorf("%s: each: got %v", name, err)
		}
	}
}

func copies(t *testing.T, s store.Store) {
	v := []byte("1")
	var got []byte
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		b := tx.Bucket("b")
		if err := b.Put("k", v); err != nil {
			return err
		}
		v[0] = 'x'
		var err error
		got, _, err = b.Get("k")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "1" {
		t.Errorf("got %q, want %q", got, "1")
	}
	got[0] = 'y'
	want(t, list(t, s, "b", ""), "k=1")
}

func strictJSON(t *testing.T, s store.Store) {
	type record struct {
		Name string `json:"name"`
		N    int    `json:"n"`
	}
	err := s.Update(t.Context(), func(tx *store.Tx) error { return store.PutJSON(tx.Bucket("b"), "ok", record{"a", 1}) })
	if err != nil {
		t.Fatal(err)
	}
	for key, raw := range map[string]string{
		"unknown": `{"name":"a","quarantined":true}`, "null": `null`, "two": `{} {}`, "type": `{"n":"1"}`, "cut": `{"n":`, "empty": ``,
	} {
		put(t, s, "bad", key, raw)
	}
	err = s.View(t.Context(), func(tx *store.Tx) error {
		r := record{"left over", 9}
		if found, err := store.GetJSON(tx.Bucket("b"), "none", &r); found || err != nil || r != (record{}) {
			t.Errorf("none: got %v, %v, %v", found, err, r)
		}
		if found, err := store.GetJSON(tx.Bucket("b"), "ok", &r); !found || err != nil || r != (record{"a", 1}) {
			t.Errorf("ok: got %v, %v, %v", found, err, r)
		}
		bad := 0
		if err := tx.Bucket("bad").Each("", func(key string, _ []byte) error {
			bad++
			if found, err := store.GetJSON(tx.Bucket("bad"), key, &r); found || !errors.Is(err, store.ErrDecode) || r != (record{}) {
				t.Errorf("%s: got %v, %v, %v", key, found, err, r)
			}
			return nil
		}); err != nil || bad != 6 {
			t.Errorf("each: %d records, %v", bad, err)
		}
		return store.EachJSON(tx.Bucket("bad"), "", func(string, record) error { return nil })
	})
	if !errors.Is(err, store.ErrDecode) {
		t.Errorf("each: got %v, want ErrDecode", err)
	}
}

func writeWhileListing(t *testing.T, s store.Store) {
	for i := range 200 {
		put(t, s, "b", fmt.Sprintf("%03d", i), "old")
	}
	seen := 0
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		b := tx.Bucket("b")
		return b.Each("", func(k string, v []byte) error {
			seen++
			if k[2] == '7' {
				return b.Delete(k)
			}
			return b.Put(k, []byte("new"))
		})
	})
	if err != nil || seen != 200 {
		t.Errorf("saw %d of 200, %v", seen, err)
	}
	pairs := list(t, s, "b", "")
	if len(pairs) != 180 || slices.ContainsFunc(pairs, func(p string) bool { return !strings.HasSuffix(p, "=new") }) {
		t.Errorf("got %v", pairs)
	}
}

func oneAtATime(t *testing.T, s store.Store) {
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				err := s.Update(context.Background(), func(tx *store.Tx) error {
					if inside.Add(1) != 1 {
						t.Error("two transactions at once")
					}
					defer inside.Add(-1)
					var n int
					if _, err := store.GetJSON(tx.Bucket("b"), "n", &n); err != nil {
						return err
					}
					return store.PutJSON(tx.Bucket("b"), "n", n+1)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	want(t, list(t, s, "b", ""), "n=40")
}

func givesUp(t *testing.T, s store.Store) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Update(ended, func(*store.Tx) error { t.Error("ran"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	in, out := make(chan bool), make(chan bool)
	go func() {
		_ = s.Update(context.Background(), func(*store.Tx) error { close(in); <-out; return nil })
	}()
	<-in
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.View(late, func(*store.Tx) error { t.Error("ran"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(out)
	want(t, list(t, s, "b", ""))
}

func locks(t *testing.T, s store.Store) {
	a, err := s.TryLock("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryLock("a"); !errors.Is(err, store.ErrBusy) {
		t.Errorf("second: got %v, want ErrBusy", err)
	}
	b, err := s.TryLock("b")
	if err != nil {
		t.Fatal(err)
	}
	b.Unlock()
	if _, err := s.TryLock("a"); !errors.Is(err, store.ErrBusy) {
		t.Errorf("after another's unlock: got %v, want ErrBusy", err)
	}
	put(t, s, "b", "k", "v") // independent of transactions
	a.Unlock()
	a.Unlock()
	again, err := s.TryLock("a")
	if err != nil {
		t.Fatal(err)
	}
	a.Unlock() // not ours any more
	if _, err := s.TryLock("a"); !errors.Is(err, store.ErrBusy) {
		t.Errorf("after a stale unlock: got %v, want ErrBusy", err)
	}
	again.Unlock()
}

// likeAMap compares a store with a Go map over random transactions.
func likeAMap(t *testing.T, s store.Store) {
	bucket := 0
	rapid.Check(t, func(rt *rapid.T) {
		bucket++
		name := fmt.Sprint("rapid", bucket)
		model := map[string]string{}
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			next := maps.Clone(model)
			keep := rapid.Bool().Draw(rt, "keep")
			err := s.Update(context.Background(), func(tx *store.Tx) error {
				for range rapid.IntRange(0, 5).Draw(rt, "writes") {
					k := rapid.SampledFrom([]string{"a", "b", "ba", "c", "\x00", "\xff"}).Draw(rt, "key")
					if rapid.Bool().Draw(rt, "delete") {
						delete(next, k)
						if err := tx.Bucket(name).Delete(k); err != nil {
							rt.Fatal(err)
						}
						continue
					}
					next[k] = rapid.StringN(0, 4, 8).Draw(rt, "value")
					if err := tx.Bucket(name).Put(k, []byte(next[k])); err != nil {
						rt.Fatal(err)
					}
				}
				if !keep {
					return errors.New("dropped")
				}
				return nil
			})
			if keep != (err == nil) {
				rt.Fatal(err)
			}
			if keep {
				model = next
			}
			var pairs []string
			for _, k := range slices.Sorted(maps.Keys(model)) {
				pairs = append(pairs, k+"="+model[k])
			}
			if diff := cmp.Diff(pairs, list(t, s, name, "")); diff != "" {
				rt.Fatalf("(-want +got)\n%s", diff)
			}
		}
	})
}
