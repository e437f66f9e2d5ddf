// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

func serverHello(random []byte, rest ...byte) []byte {
	return append([]byte{2}, vec(3, []byte{3, 3}, random, rest)...)
}

// verdicts reads all of raw, size bytes at a time.
func verdicts(raw []byte, size int) (all []Verdict) {
	var a Answer
	for part := range slices.Chunk(raw, size) {
		for len(part) > 0 {
			var v Verdict
			if v, part = a.Next(part); v == Unanswered {
				break
			}
			if all = append(all, v); v != Retry {
				return all
			}
		}
	}
	return all
}

// A-H2: however it is cut.
func TestM8AnswerOfAServer(t *testing.T) {
	retry, plain := serverHello(retryRandom[:], make([]byte, 40)...), serverHello(make([]byte, 32), 0, 19, 1, 0)
	alert, changed := []byte{21, 3, 0, 0, 2, 1, 112}, []byte{20, 3, 3, 0, 1, 1}
	nearly := slices.Clone(retryRandom[:])
	nearly[31]++
	for _, c := range []struct {
		name string
		raw  []byte
		want []Verdict
	}{
		{"served", records(plain, 1<<14), []Verdict{Served}},
		{"retry", records(retry, 1<<14), []Verdict{Retry}},
		{"almost a retry", records(serverHello(nearly, make([]byte, 40)...), 1<<14), []Verdict{Served}},
		{"retry, then served", slices.Concat(records(retry, 1<<14), changed, records(plain, 1<<14)), []Verdict{Retry, Served}},
		{"both in a record", records(slices.Concat(retry, plain), 1<<14), []Verdict{Retry, Served}},
		{"in small records", records(slices.Concat(retry, plain), 5), []Verdict{Retry, Served}},
		{"two retries", records(slices.Concat(retry, retry), 1<<14), []Verdict{Retry, Retry}},
		{"a warning before", slices.Concat(alert, records(retry, 1<<14)), []Verdict{Retry}},
		{"an alert between pieces", slices.Concat(records(retry[:20], 1<<14), alert, records(retry[20:], 1<<14)), []Verdict{Retry}},
		{"nothing yet", records(retry, 1<<14)[:42], nil},
		{"too short", records(append([]byte{2, 0, 0, 33}, make([]byte, 34)...), 1<<14), []Verdict{Strange}},
		{"another message", records([]byte{11, 0, 0, 0}, 1<<14), []Verdict{Strange}},
		{"a message after a retry", slices.Concat(records(retry, 1<<14), records([]byte{0, 0, 0, 0}, 1<<14)), []Verdict{Retry, Strange}},
		{"data", []byte{23, 3, 3, 0, 1, 0}, []Verdict{Strange}},
		{"an empty record", []byte{22, 3, 3, 0, 0}, []Verdict{Strange}},
		{"HTTP", []byte("HTTP/1.1 400 Bad Request\r\n"), []Verdict{Strange}},
		{"alerts without end", bytes.Repeat(alert, maxAnswerRecords+1), []Verdict{Strange}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 7, 43, 1 << 16} {
				if got := verdicts(c.raw, size); !slices.Equal(got, c.want) {
					t.Errorf("in pieces of %d: got %v, want %v", size, got, c.want)
				}
			}
		})
	}
}

// What is taken for an answer doesn't depend on how it comes, and a question is one for whoever joins the records too.
func FuzzAnswer(f *testing.F) {
	retry := serverHello(retryRandom[:], make([]byte, 40)...)
	f.Add(records(retry, 1<<14), 3)
	f.Add(append([]byte{21, 3, 3, 0, 2, 1, 112, 20, 3, 3, 0, 1, 1}, records(append(retry, serverHello(make([]byte, 32), 0)...), 11)...), 1)
	f.Fuzz(func(t *testing.T, unsafe []byte, size int) {
		whole := verdicts(unsafe, max(1, len(unsafe)))
		if pieces := verdicts(unsafe, max(1, size&0xffff)); !slices.Equal(whole, pieces) {
			t.Fatalf("%x: %v as a whole, %v in pieces of %d", unsafe, whole, pieces, size)
		}
		var joined []byte
		for b := unsafe; len(b) >= recordHeader; {
			n := min(len(b), recordHeader+int(b[3])<<8+int(b[4]))
			if b[0] == recordHandshake {
				joined = append(joined, b[recordHeader:n]...)
			}
			b = b[n:]
		}
		asks := len(joined) >= 38 && joined[0] == 2 && bytes.Equal(joined[6:38], retryRandom[:])
		if len(whole) > 0 && whole[0] != Strange && (whole[0] == Retry) != asks {
			t.Fatalf("%x: got %v", unsafe, whole)
		}
	})
}

// A second hello is what a first one would be, behind what a client may send before it.
func FuzzSecondHello(f *testing.F) {
	f.Add(hello(sni("example.com")))
	f.Add(append([]byte{20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 3, 1, 2, 3}, hello(sni("a.example"))...))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		h, err := ParseSecondHello(unsafe)
		if err != nil {
			return
		}
		at, changed := 0, 0
		for unsafe[at] != recordHandshake {
			if unsafe[at] == recordCCS {
				changed++
			} else if unsafe[at] != recordData {
				t.Fatalf("%x: a record of type %d is taken", unsafe, unsafe[at])
			}
			at += recordHeader + int(unsafe[at+3])<<8 + int(unsafe[at+4])
		}
		first, err := ParseClientHello(unsafe[at:])
		if first.Len += at; err != nil || first != h || changed > 1 || h.Len > len(unsafe) {
			t.Fatalf("%x: got %+v, alone %+v, %v", unsafe, h, first, err)
		}
		for n := range h.Len {
			if _, err := ParseSecondHello(unsafe[:n]); !errors.Is(err, ErrShort) {
				t.Fatalf("%x: %d of %d bytes: %v", unsafe, n, h.Len, err)
			}
		}
	})
}

// Of what passes in the clear no message is a hello, for whoever joins the records.
func FuzzClear(f *testing.F) {
	f.Add([]byte{22, 3, 3, 0, 6, 11, 0, 0, 0, 16, 0, 22, 3, 3, 0, 3, 0, 1, 1, 20, 3, 3, 0, 1, 1})
	f.Add(append([]byte{21, 3, 1, 0, 2, 1, 0}, hello(sni("example.com"))...))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		var c Clear
		var passed []byte
		for b := unsafe; len(b) >= recordHeader; {
			size, encrypted, err := c.Next(b)
			if err != nil || encrypted || size > len(b) {
				break
			}
			if b[0] == recordHandshake {
				passed = append(passed, b[recordHeader:size]...)
			}
			b = b[size:]
		}
		for len(passed) > 0 {
			if passed[0] == 1 {
				t.Fatalf("%x: a hello passes", unsafe)
			}
			if len(passed) < messageHeader {
				break
			}
			passed = passed[min(len(passed), messageHeader+int(passed[1])<<16+int(passed[2])<<8+int(passed[3])):]
		}
	})
}
