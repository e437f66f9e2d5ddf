// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

// filled is a record of a kind whose fields are set one after the other, so that every field of every kind is
// met.
func filled(k Kind, one, two string, n int64, v float64, bits uint64) Record {
	r := newRecord(k)
	s := reflect.ValueOf(r).Elem()
	for i := range s.NumField() {
		set := bits>>(i%32)&1 == 1
		if !set {
			continue
		}
		text := one
		if bits>>(32+i%32)&1 == 1 {
			text = two
		}
		switch f := s.Field(i); f.Interface().(type) {
		case string:
			f.SetString(text)
		case []string:
			f.Set(reflect.ValueOf([]string{text, one}))
		case int64:
			f.SetInt(n)
		case bool:
			f.SetBool(true)
		case Number:
			f.Set(reflect.ValueOf(NumberOf(v)))
		case Ring:
			f.Set(reflect.ValueOf(RingOf(int(n & 7))))
		case Hash:
			f.Set(reflect.ValueOf(Hash{byte(n), 1}))
		case time.Time:
			f.Set(reflect.ValueOf(time.Unix(n>>20, n&0xfffff).UTC()))
		}
	}
	return r
}

// told are the values of a record, by reflection; read are those of its JSON, by encoding/json. Neither knows
// the codec.
func told(r Record) (texts []string, numbers []float64) {
	s := reflect.ValueOf(r).Elem()
	for i := range s.NumField() {
		switch v := s.Field(i).Interface().(type) {
		case string:
			texts = append(texts, v)
		case []string:
			texts = append(texts, v...)
		case int64:
			numbers = append(numbers, float64(v))
		case Number:
			if x, known := v.Value(); known {
				numbers = append(numbers, x)
			}
		case Ring:
			if v != NoRing {
				numbers = append(numbers, float64(v-Root))
			}
		case Hash:
			if v != (Hash{}) {
				texts = append(texts, hex.EncodeToString(v[:]))
			}
		case time.Time:
			if !v.IsZero() {
				texts = append(texts, v.Format("2006-01-02T15:04:05.000000000Z"))
			}
		}
	}
	return texts, numbers
}

func leaves(v any) (texts []string, numbers []float64) {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			t, n := leaves(inner)
			texts, numbers = append(texts, t...), append(numbers, n...)
		}
	case []any:
		for _, inner := range v {
			t, n := leaves(inner)
			texts, numbers = append(texts, t...), append(numbers, n...)
		}
	case string:
		texts = []string{v}
	case float64:
		numbers = []float64{v}
	}
	return texts, numbers
}

// tidy leaves out what is written as nothing, or as null.
func tidy(texts []string, numbers []float64) ([]string, []float64) {
	texts = slices.DeleteFunc(texts, func(s string) bool { return s == "" })
	numbers = slices.DeleteFunc(numbers, func(x float64) bool { return x == 0 })
	slices.Sort(texts)
	slices.Sort(numbers)
	return texts, numbers
}

// H-25, H-27: whatever is put into a record is refused, and leaves the chain as it was, or reads back as the
// same record; and encoding/json reads the same values from the line.
func FuzzRecord(f *testing.F) {
	for k := range Kinds() {
		f.Add(byte(k), "did:example:\u00e4\n\x1b[2J", "code_word", int64(3), 0.5, uint64(math.MaxUint64)>>32|0xaaaaaaaa00000000)
		f.Add(byte(k), "a\u2028\ufeff\U0001f600", "x", int64(MaxInteger), 1e21, uint64(math.MaxUint64))
		f.Add(byte(k), "\xff", "", int64(-1), math.Inf(1), uint64(0x5555555555555555))
		f.Add(byte(k), "code", "other_code", int64(1)<<50|7, -5e-324, uint64(math.MaxUint64))
	}
	f.Fuzz(func(t *testing.T, kind byte, one, two string, n int64, v float64, bits uint64) {
		all := Kinds()
		r := filled(all[int(kind)%len(all)], one, two, n, v, bits)
		m, err := NewMemory(NodeChain, fixed(at))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Append(r); err != nil {
			if m.Head() != (Head{}) || len(m.Lines()) > 0 {
				t.Fatalf("refused (%v), and the chain has %q", err, m.Lines())
			}
			return
		}
		line := bytes.TrimSuffix(m.Lines(), []byte("\n"))
		e, err := DecodeEntry(line)
		if err != nil {
			t.Fatalf("wrote %s, and can't read it: %v", line, err)
		}
		if !reflect.DeepEqual(e.Data, r) {
			t.Fatalf("wrote %+v, read %+v", r, e.Data)
		}
		var others struct{ Data map[string]any }
		if err := json.Unmarshal(line, &others); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		texts, numbers := tidy(told(r))
		gotTexts, gotNumbers := tidy(leaves(others.Data))
		if !slices.Equal(texts, gotTexts) || !slices.Equal(numbers, gotNumbers) {
			t.Fatalf("%s: encoding/json reads %q, %v, the record has %q, %v", line, gotTexts, gotNumbers, texts, numbers)
		}
	})
}

// H-25, H-26: of a signed chain with every kind of record nothing can be changed, cut, taken out, doubled or
// moved, at any place and of any length, without Verify telling.
func FuzzTampering(f *testing.F) {
	var records []Record
	for _, r := range allExamples() {
		if r.Kind() != "repair" && r.Kind() != "rotation" { // which say something about files
			records = append(records, r)
		}
	}
	whole := memoryOf(f, records...).Lines()
	sound := lines{whole}
	opt := signed(f, sound)
	dir := write(f, sound)
	name := filepath.Join(dir, NodeChain, fileName(1))
	for op := range byte(6) {
		for _, at := range []uint32{0, 1, 63, 700, uint32(len(whole)) - 1} {
			f.Add(op, at, uint16(1), byte(1))
			f.Add(op, at, uint16(300), byte(0x20))
		}
	}
	f.Fuzz(func(t *testing.T, op byte, at uint32, length uint16, change byte) {
		i := int(at) % len(whole)
		j := min(i+int(length), len(whole))
		part, after := whole[i:j], whole[j:]
		edited := bytes.Clone(whole[:i])
		switch op % 6 {
		case 0: // one bit or more of one byte
			edited = append(append(edited, whole[i]^change), whole[i+1:]...)
		case 1: // cut
		case 2: // taken out
			edited = append(edited, after...)
		case 3: // doubled
			edited = append(append(append(edited, part...), part...), after...)
		case 4: // moved to the end
			edited = append(append(edited, after...), part...)
		case 5: // overwritten
			edited = append(append(edited, bytes.Repeat([]byte{change}, len(part))...), after...)
		}
		if err := os.WriteFile(name, edited, 0o600); err != nil {
			t.Fatal(err)
		}
		r := verify(t, dir, opt)
		if same := bytes.Equal(edited, whole); same != r.Valid {
			t.Fatalf("op %d at %d, %d bytes, %x: valid %v, the same %v: %v", op%6, i, j-i, change, r.Valid, same, r.Problem)
		}
		if !r.Valid && (r.Entries > int64(len(records)) || r.Problem.Code == "" || r.Problem.Message == "") {
			t.Fatalf("op %d at %d: %+v", op%6, i, r)
		}
		// What a reader gives before it stops are lines of the chain in their order.
		reader, err := OpenReader(dir, NodeChain)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		var exported []byte
		for {
			l, err := reader.Next()
			if err != nil {
				if damaged, ok := errors.AsType[*DamagedError](err); !ok && !errors.Is(err, io.EOF) || ok && r.Valid {
					t.Fatalf("reader: %v, %v", err, damaged)
				}
				break
			}
			exported = append(append(exported, l.Raw...), '\n')
		}
		if r.Valid && !bytes.Equal(exported, whole) {
			t.Fatalf("the export of a sound chain isn't the chain")
		}
	})
}
