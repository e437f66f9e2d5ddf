// SPDX-License-Identifier: Apache-2.0

package subid

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestM1SubordinateRanges(t *testing.T) {
	const file = "# of the administrator\nalice:100000:65536\nbob:165536:65536\n\n1000:300000:10\n"
	for _, c := range []struct {
		name string
		uid  uint32
		want []Range
	}{
		{"alice", 1000, []Range{{100000, 65536}, {300000, 10}}},
		{"bob", 1001, []Range{{165536, 65536}}},
		{"", 1000, []Range{{300000, 10}}},
		{"", 1001, nil},
		{"ali", 7, nil},
		{"alice:100000", 7, nil},
	} {
		got, err := Of(file, c.name, c.uid)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s, %d: (-want +got)\n%s", c.name, c.uid, d)
		}
	}
}

// A line that can't be understood refuses the file, also where it isn't the user's.
func TestM1MalformedSubordinateRanges(t *testing.T) {
	for _, line := range []string{
		"alice", "alice:1", "alice:1:2:3", ":1:2", "alice::2", "alice:1:", "alice:0:5", "alice:5:0", "alice:-5:5", "alice:+5:5",
		"alice: 5:5", "alice:5:5 ", "alice:5:5\r", "alice:1_0:5", "alice:0x10:5", "alice:4294967295:1", "alice:4294967290:6",
		"alice:99999999999:1", "alice:900:200", strings.Repeat("a", 600) + ":1:1", "bob:x:1",
	} {
		if got, err := Of("bob:1:1\n"+line+"\n", "alice", 1000); err == nil && (line != "" || got != nil) {
			t.Errorf("%.60q: got %v, want an error", line, got)
		}
	}
}

func TestM1LargestRange(t *testing.T) {
	if _, ok := Largest(nil); ok {
		t.Error("a range of nothing")
	}
	if got, _ := Largest([]Range{{1, 5}, {100, 50}, {500, 50}}); got != (Range{100, 50}) {
		t.Errorf("got %v", got)
	}
}

func FuzzOf(f *testing.F) {
	f.Add("alice:100000:65536\n1000:300000:10\n", "alice", uint32(1000))
	f.Add("alice:4294967290:6", "alice", uint32(0))
	f.Fuzz(func(t *testing.T, text, name string, uid uint32) {
		ranges, err := Of(text, name, uid)
		if err != nil && ranges != nil {
			t.Fatalf("got ranges beside the error %v", err)
		}
		for _, r := range ranges {
			if r.First == 0 || r.Count == 0 || uint64(r.First)+uint64(r.Count) > 1<<32-1 || r.Has(uid) {
				t.Fatalf("got %v of user %d", r, uid)
			}
		}
	})
}
