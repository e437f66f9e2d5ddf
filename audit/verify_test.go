// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A chain in tests is a list of lines, each with its newline. The notation: chainOf(t, n) has entries 0 to n-1; edits are
// functions from lines to lines; write puts them where Verify looks.
type lines [][]byte

func chainOf(t testing.TB, n int) lines {
	t.Helper()
	m, err := NewMemory(NodeChain, fixed(at))
	if err != nil {
		t.Fatal(err)
	}
	return extend(t, m, n)
}

func extend(t testing.TB, m *Memory, n int) lines {
	t.Helper()
	for i := range n {
		if _, err := m.Append(&Refusal{Count: int64(i + 1), RunID: fmt.Sprintf("r%d", i), Syscall: "mount", Verdict: "EPERM"}); err != nil {
			t.Fatal(err)
		}
	}
	return split(m.Lines())
}

func split(b []byte) lines { return slices.Collect(bytes.Lines(b)) }

// rehash makes an entry sound by itself after an edit, with the previous hash given.
func rehash(t testing.TB, line []byte, seq int64, prev Hash, edit func(*Refusal)) []byte {
	t.Helper()
	e, err := DecodeEntry(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		t.Fatal(err)
	}
	e.Seq, e.PrevHash = seq, prev
	if edit != nil {
		edit(e.Data.(*Refusal))
	}
	data, err := appendData(nil, e.Data)
	if err != nil {
		t.Fatal(err)
	}
	rehashed, err := appendLine(nil, &e, data)
	if err != nil {
		t.Fatal(err)
	}
	return rehashed
}

func hashOf(t testing.TB, line []byte) Hash {
	t.Helper()
	e, err := DecodeEntry(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		t.Fatal(err)
	}
	return e.Hash
}

func write(t testing.TB, files ...lines) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, NodeChain), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, l := range files {
		if err := os.WriteFile(filepath.Join(dir, NodeChain, fileName(i+1)), bytes.Join(l, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func verify(t testing.TB, dir string, opt VerifyOptions) Report {
	t.Helper()
	r, err := Verify(dir, NodeChain, opt)
	if err != nil {
		t.Fatal(err)
	}
	if r.Valid != (r.Problem == nil) {
		t.Fatalf("report contradicts itself: %+v", r)
	}
	return r
}

func tempKey(t testing.TB) *SigningKey {
	t.Helper()
	k, created, err := LoadOrCreateKey(filepath.Join(t.TempDir(), "keys"))
	if err != nil || !created {
		t.Fatal(k, created, err)
	}
	return k
}

// signed gives options that hold a chain against a checkpoint over these lines.
func signed(t testing.TB, l lines) VerifyOptions {
	t.Helper()
	k := &Checkpoints{Dir: filepath.Join(t.TempDir(), "checkpoints"), Key: tempKey(t), Now: fixed(at)}
	note, _, err := k.Write(write(t, l), NodeChain)
	if err != nil {
		t.Fatal(err)
	}
	return VerifyOptions{Checkpoints: [][]byte{note}, Key: k.Key.Public()}
}

func TestH25SoundChains(t *testing.T) {
	for _, n := range []int{0, 1, 2, 100} {
		r := verify(t, write(t, chainOf(t, n)), VerifyOptions{})
		if !r.Valid || r.Entries != int64(n) {
			t.Errorf("%d entries: %+v", n, r)
		}
	}
	c := chainOf(t, 3)
	first, err := DecodeEntry(bytes.TrimSuffix(c[0], []byte("\n")))
	if err != nil || first.PrevHash.String() != strings.Repeat("0", 64) || first.Seq != 0 {
		t.Errorf("genesis: %+v, %v", first, err)
	}
}

// Any byte of any line changed to any of the values that come close: found at that line (or, for a newline, at one of the
// two that it parts), with a message.
func TestH25EveryByte(t *testing.T) {
	c := chainOf(t, 3)
	whole := bytes.Join(c, nil)
	dir := write(t, c)
	name := filepath.Join(dir, NodeChain, fileName(1))
	line := int64(1)
	for i, b := range whole {
		for _, change := range []byte{1, 2, 4, 0x20, 0x80, b, b ^ '\n', b ^ ' '} { // flips; NUL, newline, space
			edited := bytes.Clone(whole)
			if edited[i] ^= change; edited[i] == b {
				continue
			}
			if err := os.WriteFile(name, edited, 0o600); err != nil {
				t.Fatal(err)
			}
			p := verify(t, dir, VerifyOptions{}).Problem
			if p == nil {
				t.Fatalf("byte %d changed from %q to %q: not found", i, b, edited[i])
			}
			if p.Line != line && (b != '\n' || p.Code != Torn) || p.Message == "" || p.File != fileName(1) {
				t.Fatalf("byte %d in line %d changed from %q to %q: found as %v", i, line, b, edited[i], p)
			}
			if p.Code != Edited && p.Code != Malformed && p.Code != Torn {
				t.Fatalf("byte %d in line %d changed from %q to %q: found as %v", i, line, b, edited[i], p)
			}
		}
		if b == '\n' {
			line++
		}
	}
}

func TestH25Tampering(t *testing.T) {
	c := chainOf(t, 6)
	m, _ := NewMemory(NodeChain, fixed(at.Add(1)))
	other := extend(t, m, 6)
	m, _ = NewMemory(SessionChain("s"), fixed(at))
	foreign := extend(t, m, 6)
	for name, tt := range map[string]struct {
		lines lines
		code  Code
		line  int64
		seq   int64
		text  string
	}{
		"entry deleted":           {lines{c[0], c[1], c[3], c[4], c[5]}, Missing, 3, 3, "entry 2 is gone"},
		"two deleted":             {lines{c[0], c[3], c[4], c[5]}, Missing, 2, 3, "entries 1 to 2 are gone"},
		"first deleted":           {c[1:], Missing, 1, 1, "entry 0 is gone"},
		"two swapped":             {lines{c[0], c[2], c[1], c[3], c[4], c[5]}, Reordered, 2, 2, "entry 1 is due"},
		"first moved to the end":  {lines{c[1], c[2], c[3], c[4], c[5], c[0]}, Reordered, 1, 1, "entry 0 is due"},
		"last moved to the front": {lines{c[5], c[0], c[1], c[2], c[3], c[4]}, Reordered, 1, 5, "entry 0 is due"},
		"reversed":                {lines{c[5], c[4], c[3], c[2], c[1], c[0]}, Reordered, 1, 5, "entry 0 is due"},
		"doubled":                 {lines{c[0], c[1], c[1], c[2], c[3], c[4], c[5]}, Inserted, 3, 1, "a second time"},
		"copied further down":     {lines{c[0], c[1], c[2], c[3], c[1], c[4], c[5]}, Inserted, 5, 1, "entry 4 is due"},
		"made up, in between":     {lines{c[0], c[1], rehash(t, c[2], 2, hashOf(t, c[1]), func(r *Refusal) { r.Count = 99 }), c[2], c[3]}, Forked, 4, 2, "a second entry 2"},
		"made up, wrong hash":     {lines{c[0], c[1], rehash(t, c[2], 2, Hash{1}, nil), c[2], c[3]}, Inserted, 3, 2, "stands further on"},
		"replaced and rehashed":   {lines{c[0], c[1], rehash(t, c[2], 2, hashOf(t, c[1]), func(r *Refusal) { r.Count = 99 }), c[3], c[4]}, Forked, 4, 3, "one of the two was replaced"},
		"other chain's end":       {lines{c[0], c[1], c[2], other[3], other[4]}, Forked, 4, 3, "one of the two was replaced"},
		"no genesis":              {lines{rehash(t, c[0], 0, Hash{1}, nil), c[1]}, Forked, 1, 0, "64 zeros"},
		"another chain's entry":   {lines{c[0], foreign[1], c[1]}, Inserted, 2, 1, "chain session-s"},
		"another chain":           {foreign, Inserted, 1, 0, "chain session-s"},
		"empty line":              {lines{c[0], []byte("\n"), c[1]}, Malformed, 2, 1, ""},
		"garbage":                 {lines{c[0], []byte("hello\n"), c[1]}, Malformed, 2, 1, ""},
		"long garbage":            {lines{c[0], append(bytes.Repeat([]byte("x"), 5*MaxLine), '\n'), c[1]}, Malformed, 2, 1, "longer"},
		"carriage returns":        {lines{bytes.ReplaceAll(c[0], []byte("\n"), []byte("\r\n")), c[1]}, Malformed, 1, 0, ""},
		"pretty":                  {lines{bytes.ReplaceAll(c[0], []byte(`,"`), []byte(`, "`)), c[1]}, Malformed, 1, 0, "canonical"},
		"marked as torn":          {lines{c[0], []byte("x" + tornMark + "\n"), c[1]}, Torn, 3, 1, "no repair"},
		"marked as torn, at end":  {lines{c[0], []byte("x" + tornMark + "\n")}, Torn, 2, 1, "no repair"},
		"cut in the last line":    {lines{c[0], c[1][:50]}, Torn, 1, 1, "no end"},
		"last newline gone":       {lines{c[0], c[1][:len(c[1])-1]}, Torn, 1, 1, "no end"},
	} {
		p := verify(t, write(t, tt.lines), VerifyOptions{}).Problem
		if p == nil {
			t.Errorf("%s: not found", name)
			continue
		}
		if p.Code != tt.code || p.Line != tt.line || p.Seq != tt.seq || !strings.Contains(p.Message, tt.text) {
			t.Errorf("%s: got %v (line %d), want %s at line %d, entry %d, with %q", name, p, p.Line, tt.code, tt.line, tt.seq, tt.text)
		}
	}
}

// Cut anywhere, a signed chain is found to be shorter; without a checkpoint, only a cut inside a line can be.
func TestH26Truncation(t *testing.T) {
	c := chainOf(t, 4)
	whole := bytes.Join(c, nil)
	opt := signed(t, c)
	dir := write(t, c)
	if r := verify(t, dir, opt); !r.Valid || r.Checkpoints != 1 || r.SignedSize != 4 {
		t.Fatalf("untouched: %+v", r)
	}
	name := filepath.Join(dir, NodeChain, fileName(1))
	for n := len(whole) - 1; n >= 0; n-- {
		if err := os.Truncate(name, int64(n)); err != nil {
			t.Fatal(err)
		}
		entries := int64(bytes.Count(whole[:n], []byte("\n")))
		if p := verify(t, dir, opt).Problem; p == nil || p.Code != Truncated || p.Seq != entries || !strings.Contains(p.Message, "signed over 4") {
			t.Fatalf("cut to %d bytes: %v", n, p)
		}
		p := verify(t, dir, VerifyOptions{}).Problem
		if atEnd := n == 0 || whole[n-1] == '\n'; atEnd != (p == nil) || p != nil && p.Code != Torn {
			t.Fatalf("cut to %d bytes, no checkpoint: %v", n, p)
		}
	}
	for what, remove := range map[string]string{"file": name, "chain": filepath.Dir(name)} {
		if err := os.RemoveAll(remove); err != nil {
			t.Fatal(err)
		}
		if p := verify(t, dir, opt).Problem; p == nil || p.Code != Truncated {
			t.Errorf("%s removed: %v", what, p)
		}
	}
	if _, err := Verify(dir, NodeChain, VerifyOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no chain and no checkpoint: %v", err)
	}
}

func TestH26Rewriting(t *testing.T) {
	c := chainOf(t, 5)
	opt := signed(t, c[:3])
	again := func(from int) lines {
		out := slices.Clone(c)
		prev := Hash{}
		for i := range out {
			if i == from {
				out[i] = rehash(t, c[i], int64(i), prev, func(r *Refusal) { r.Count += 100 })
			} else {
				out[i] = rehash(t, c[i], int64(i), prev, nil)
			}
			prev = hashOf(t, out[i])
		}
		return out
	}
	for from := range 5 {
		p := verify(t, write(t, again(from)), opt).Problem
		if from < 3 && (p == nil || p.Code != Rewritten || p.Seq != 2 || p.Line != 3) {
			t.Errorf("rewritten from %d: %v", from, p)
		}
		// What came after the checkpoint isn't signed yet: documented.
		if from >= 3 && p != nil {
			t.Errorf("rewritten from %d: %v", from, p)
		}
	}
	if r := verify(t, write(t, c), opt); !r.Valid {
		t.Errorf("grown: %v", r.Problem)
	}
}

func TestH26Signatures(t *testing.T) {
	c := chainOf(t, 3)
	dir, opt := write(t, c), signed(t, c)
	note := string(opt.Checkpoints[0])
	for name, edit := range map[string]func() VerifyOptions{
		"size edited":   func() VerifyOptions { return with(opt, strings.Replace(note, "\n3\n", "\n2\n", 1)) },
		"origin edited": func() VerifyOptions { return with(opt, strings.Replace(note, "/node", "/session-x", 1)) },
		"cut":           func() VerifyOptions { return with(opt, note[:len(note)/2]) },
		"empty":         func() VerifyOptions { return with(opt, "") },
		"no signature":  func() VerifyOptions { return with(opt, strings.SplitAfter(note, "\n\n")[0]) },
		"another key":   func() VerifyOptions { o := with(opt, note); o.Key = tempKey(t).Public(); return o },
		"second bad": func() VerifyOptions {
			o := with(opt, note)
			o.Checkpoints = append(o.Checkpoints, []byte("x"))
			return o
		},
		"another chain": func() VerifyOptions {
			k := &Checkpoints{Dir: t.TempDir(), Key: tempKey(t)}
			m, _ := NewMemory(SessionChain("s"), nil)
			d := t.TempDir()
			os.Mkdir(filepath.Join(d, "session-s"), 0o700)
			os.WriteFile(filepath.Join(d, "session-s", fileName(1)), bytes.Join(extend(t, m, 1), nil), 0o600)
			n, _, err := k.Write(d, SessionChain("s"))
			if err != nil {
				t.Fatal(err)
			}
			return VerifyOptions{Checkpoints: [][]byte{n}, Key: k.Key.Public()}
		},
	} {
		r := verify(t, dir, edit())
		if r.Problem == nil || r.Problem.Code != BadSignature || r.Problem.Message == "" {
			t.Errorf("%s: %v", name, r.Problem)
		}
	}
	for _, key := range []string{"", "x", "PRIVATE+KEY+a+b+c"} {
		if _, err := Verify(dir, NodeChain, VerifyOptions{Checkpoints: opt.Checkpoints, Key: key}); err == nil {
			t.Errorf("key %q: no error", key)
		}
	}
}

func with(o VerifyOptions, note string) VerifyOptions {
	return VerifyOptions{Checkpoints: [][]byte{[]byte(note)}, Key: o.Key}
}

// A chain over several files: its parts can't be taken away, swapped or shifted.
func TestH25Files(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, NodeChain, Options{Now: fixed(at), RotateBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 12)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := verify(t, dir, VerifyOptions{})
	if !r.Valid || r.Files < 4 {
		t.Fatalf("%+v", r)
	}
	var files []lines
	for i := range r.Files {
		b, err := os.ReadFile(filepath.Join(dir, NodeChain, fileName(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, split(b))
	}
	last := len(files) - 1
	for name, tt := range map[string]struct {
		edit func(f []lines) []lines
		code Code
		file int
	}{
		"last file gone":    {func(f []lines) []lines { return f[:last] }, Truncated, last},
		"first file gone":   {func(f []lines) []lines { return f[1:] }, Missing, 1},
		"middle file gone":  {func(f []lines) []lines { return slices.Delete(f, 1, 2) }, Missing, 2},
		"two files swapped": {func(f []lines) []lines { f[1], f[2] = f[2], f[1]; return f }, Reordered, 2},
		"file doubled":      {func(f []lines) []lines { return slices.Insert(f, 1, f[0]) }, Inserted, 2},
		"rotation deleted":  {func(f []lines) []lines { f[0] = f[0][:len(f[0])-1]; return f }, Missing, 2},
		"entry moved back":  {func(f []lines) []lines { f[0] = append(f[0], f[1][0]); f[1] = f[1][1:]; return f }, Reordered, 1},
		"entry moved on": {func(f []lines) []lines {
			n := len(f[0]) - 1
			f[1] = slices.Insert(f[1], 0, f[0][n])
			f[0] = f[0][:n]
			return f
		}, Reordered, 2},
		"file emptied": {func(f []lines) []lines { f[1] = nil; return f }, Missing, 3},
	} {
		copied := make([]lines, len(files))
		for i := range files {
			copied[i] = slices.Clone(files[i])
		}
		p := verify(t, write(t, tt.edit(copied)...), VerifyOptions{}).Problem
		if p == nil || p.Code != tt.code || p.File != fileName(tt.file) {
			t.Errorf("%s: got %v, want %s in %s", name, p, tt.code, fileName(tt.file))
		}
	}
}

// No sequence of deletions, copies and swaps of whole lines that changes the chain passes, unless it only cuts the end.
func TestH25AnyShuffle(t *testing.T) {
	c := chainOf(t, 8)
	dir := write(t, c)
	name := filepath.Join(dir, NodeChain, fileName(1))
	rapid.Check(t, func(rt *rapid.T) {
		var shuffled lines
		for range rapid.IntRange(0, 10).Draw(rt, "n") {
			shuffled = append(shuffled, c[rapid.IntRange(0, 7).Draw(rt, "i")])
		}
		if rapid.Bool().Draw(rt, "sorted") {
			slices.SortFunc(shuffled, func(a, b []byte) int { return slices.IndexFunc(c, same(a)) - slices.IndexFunc(c, same(b)) })
		}
		if err := os.WriteFile(name, bytes.Join(shuffled, nil), 0o600); err != nil {
			rt.Fatal(err)
		}
		sound := len(shuffled) <= len(c) && bytes.HasPrefix(bytes.Join(c, nil), bytes.Join(shuffled, nil))
		r, err := Verify(dir, NodeChain, VerifyOptions{})
		if err != nil || r.Valid != sound {
			rt.Fatalf("valid %v, want %v: %v, %v", r.Valid, sound, r.Problem, err)
		}
		// The same entries as values: same answer, same place.
		var raw []json.RawMessage
		for _, l := range shuffled {
			raw = append(raw, json.RawMessage(l))
		}
		e := VerifyEntries(raw)
		if e.Valid != sound || !sound && (int64(e.Index) != r.Problem.Line-1 || e.Problem != r.Problem.Code) {
			rt.Fatalf("VerifyEntries: %+v, Verify: %v", e, r.Problem)
		}
	})
}

func same(a []byte) func([]byte) bool { return func(b []byte) bool { return bytes.Equal(a, b) } }

func TestH25VerifyEntries(t *testing.T) {
	var raw []json.RawMessage
	for _, l := range chainOf(t, 4) {
		raw = append(raw, json.RawMessage(bytes.TrimSpace(l)))
	}
	pretty := slices.Clone(raw)
	for i := range pretty {
		var v map[string]any
		json.Unmarshal(pretty[i], &v)
		pretty[i], _ = json.MarshalIndent(v, "", "  ")
	}
	edit := func(i int, old, new string) []json.RawMessage {
		out := slices.Clone(raw)
		if !bytes.Contains(out[i], []byte(old)) {
			t.Fatalf("%s is not in %s", old, out[i])
		}
		out[i] = bytes.Replace(out[i], []byte(old), []byte(new), 1)
		return out
	}
	for name, tt := range map[string]struct {
		entries []json.RawMessage
		index   int
		code    Code
	}{
		"none":              {nil, -1, ""},
		"sound":             {raw, -1, ""},
		"other spelling":    {pretty, -1, ""},
		"number as 1e0":     {edit(0, `"count":1`, `"count":1e0`), -1, ""},
		"escaped letter":    {edit(0, `"mount"`, `"\u006dount"`), -1, ""},
		"edited":            {edit(2, "mount", "chdir"), 2, Edited},
		"hash edited":       {edit(1, `"hash":"`, `"hash":"0`), 1, Malformed},
		"missing":           {slices.Delete(slices.Clone(raw), 1, 2), 1, Missing},
		"doubled":           {slices.Insert(slices.Clone(raw), 1, raw[0]), 1, Inserted},
		"swapped":           {[]json.RawMessage{raw[1], raw[0]}, 0, Reordered},
		"another chain":     {edit(1, `"node"`, `"nodes"`), 1, Edited},
		"null":              {[]json.RawMessage{json.RawMessage("null")}, 0, Malformed},
		"nothing":           {[]json.RawMessage{nil}, 0, Malformed},
		"duplicate member":  {edit(0, `"count":1`, `"count":1,"count":1`), 0, Malformed},
		"unknown member":    {edit(0, `"kind"`, `"x":1,"kind"`), 0, Malformed},
		"no data":           {edit(0, `"data"`, `"date"`), 0, Malformed},
		"fractional seq":    {edit(1, `"seq":1`, `"seq":1.5`), 1, Malformed},
		"seq as text":       {edit(1, `"seq":1`, `"seq":"1"`), 1, Malformed},
		"number too large":  {edit(0, `"count":1`, `"count":1e999`), 0, Malformed},
		"lone surrogate":    {edit(0, `"mount"`, `"\ud800"`), 0, Malformed},
		"no UTF-8":          {edit(0, `"mount"`, "\"\xff\""), 0, Malformed},
		"local time":        {edit(0, `70Z"`, `70+01:00"`), 0, Malformed},
		"two values":        {edit(0, `{"chain"`, `{}{"chain"`), 0, Malformed},
		"nested very deep":  {[]json.RawMessage{json.RawMessage(strings.Repeat("[", 10000))}, 0, Malformed},
		"last one cut away": {raw[:3], -1, ""},
	} {
		r := VerifyEntries(tt.entries)
		if r.Index != tt.index || r.Problem != tt.code || r.Valid != (tt.index < 0) || r.Valid != (r.Message == "") {
			t.Errorf("%s: got %+v, want %s at %d", name, r, tt.code, tt.index)
		}
	}
}

func FuzzVerifyEntries(f *testing.F) {
	c := chainOf(f, 3)
	f.Add([]byte(c[0]), []byte(c[1]))
	f.Add([]byte(c[1]), []byte(c[0]))
	f.Add([]byte(c[0]), []byte(c[2]))
	f.Add([]byte("{}"), []byte("[["))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		r := VerifyEntries([]json.RawMessage{a, b})
		if r.Valid != (r.Problem == "") || r.Valid != (r.Index < 0) || r.Index > 1 {
			t.Fatalf("%+v", r)
		}
	})
}

// Whatever is in the file: no panic, and valid only if the file is what a writer writes.
func FuzzVerify(f *testing.F) {
	c := chainOf(f, 3)
	f.Add(bytes.Join(c, nil))
	f.Add(bytes.Join(c[:1], nil))
	f.Add(bytes.Join(c, nil)[:700])
	f.Add([]byte("x" + tornMark + "\n"))
	dir := write(f, c)
	torn := tornChain(f)
	f.Add(torn)
	f.Fuzz(func(t *testing.T, b []byte) {
		name := filepath.Join(dir, NodeChain, fileName(1))
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Verify(dir, NodeChain, VerifyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if (r.Problem == nil) != r.Valid {
			t.Fatalf("%+v", r)
		}
		if !r.Valid {
			return
		}
		var raw []json.RawMessage
		for line := range bytes.Lines(b) {
			if !bytes.HasSuffix(line, []byte(tornMark+"\n")) {
				raw = append(raw, line)
			}
		}
		if e := VerifyEntries(raw); !e.Valid || int64(len(raw)) != r.Entries {
			t.Fatalf("Verify says valid, VerifyEntries %+v", e)
		}
	})
}
