// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Digest returns sha256 in hexadecimal over the profile as JSON: no spaces, keys sorted, zero fields left out, register
// values as hexadecimal numbers (how they were written doesn't count). Reasons and descriptions count: changing why a
// rule stands is a change that a reviewer wants to see.
func (p Profile) Digest() string {
	if sum := p.builtinDigest(); sum != "" {
		return sum
	}
	return digests.of(p)
}

// digests are those of the other profiles that runs had lately: a digest takes a quarter of a millisecond, and a node's runs share a few
// profiles. One is found by the whole profile, never by its name, so it can be no other's.
var digests digestMemo

const maxDigests = 8

type digestMemo struct {
	mu     sync.Mutex
	lately []digested // the latest first
}

type digested struct {
	profile Profile // a copy nobody else has
	sum     string
}

func (m *digestMemo) of(p Profile) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.lately, func(d digested) bool { return d.profile.equal(&p) })
	if i == 0 {
		return m.lately[0].sum
	}
	var d digested
	if i > 0 {
		d = m.lately[i]
		m.lately = slices.Delete(m.lately, i, i+1)
	} else {
		d = digested{p.Clone(), p.digest()}
	}
	m.lately = slices.Insert(m.lately, 0, d)
	m.lately = m.lately[:min(len(m.lately), maxDigests)]
	return d.sum
}

// equal looks at every field; TestDigest changes each and wants another digest.
func (p *Profile) equal(q *Profile) bool {
	return p.Name == q.Name && p.Description == q.Description && p.Abstract == q.Abstract && p.Extends == q.Extends &&
		p.Ring == q.Ring && p.Network == q.Network && p.Limits == q.Limits && p.Safety == q.Safety && p.OnBreach == q.OnBreach &&
		p.Files.equal(&q.Files) && p.Subprocess.equal(&q.Subprocess) &&
		slices.Equal(p.Environment.Set, q.Environment.Set) && slices.Equal(p.Environment.Pass, q.Environment.Pass) &&
		slices.EqualFunc(p.Syscalls, q.Syscalls, func(a, b SyscallRule) bool { return a.equal(&b) })
}

func (f *Files) equal(g *Files) bool {
	return f.Root == g.Root && f.Workspace == g.Workspace && f.WorkspaceExec == g.WorkspaceExec && f.Why == g.Why &&
		slices.Equal(f.Etc, g.Etc) && slices.Equal(f.Guard, g.Guard)
}

func (s *Subprocess) equal(t *Subprocess) bool {
	return s.Mode == t.Mode && s.OnDemotion == t.OnDemotion && s.Why == t.Why && slices.Equal(s.Tools, t.Tools)
}

func (r *SyscallRule) equal(s *SyscallRule) bool {
	return r.Action == s.Action && r.Errno == s.Errno && r.IfKnown == s.IfKnown && r.Floor == s.Floor && r.Why == s.Why &&
		slices.Equal(r.Names, s.Names) && slices.Equal(r.Args, s.Args)
}

// builtinDigest is that of a built-in profile which is as it was built in, "" of any other: of the half a millisecond that the first digest takes a
// process nothing is left.
func (p *Profile) builtinDigest() string {
	for i := range builtinTable {
		b, q := &builtinTable[i], *p
		q.Syscalls = nil
		if q.Name == b.profile.Name && q.equal(&b.profile) &&
			slices.EqualFunc(p.Syscalls, b.rules, func(r SyscallRule, at uint16) bool { return r.equal(&builtinRules[at]) }) {
			return b.sum
		}
	}
	return ""
}

func (p *Profile) digest() string {
	c := canonicalizer{types: map[reflect.Type][]canonicalField{}, buf: make([]byte, 0, 64<<10)}
	c.value(reflect.ValueOf(*p))
	sum := sha256.Sum256(c.buf)
	return hex.EncodeToString(sum[:])
}

// canonicalizer keeps the sorted fields of each type: a profile has some 700 structs of 14 types.
type canonicalizer struct {
	types map[reflect.Type][]canonicalField
	buf   []byte
}

type canonicalField struct {
	index int
	key   string // quoted, with the colon
}

func (c *canonicalizer) fields(t reflect.Type) []canonicalField {
	if fs, ok := c.types[t]; ok {
		return fs
	}
	fs := make([]canonicalField, t.NumField())
	for i := range fs {
		fs[i] = canonicalField{i, `"` + keyOf(t.Field(i)) + `":`}
	}
	slices.SortFunc(fs, func(a, b canonicalField) int { return strings.Compare(a.key, b.key) })
	c.types[t] = fs
	return fs
}

var (
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[Duration]()
	valueType    = reflect.TypeFor[Value]()
)

func (c *canonicalizer) value(v reflect.Value) {
	switch v.Type() {
	case valueType:
		c.buf = append(strconv.AppendUint(append(c.buf, `"0x`...), v.Field(0).Uint(), 16), '"')
		return
	case sizeType:
		c.text(Size(v.Uint()).String())
		return
	case durationType:
		c.text(Duration(v.Int()).String())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		c.structure(v)
	case reflect.Slice:
		c.buf = append(c.buf, '[')
		for i := range v.Len() {
			if i > 0 {
				c.buf = append(c.buf, ',')
			}
			c.value(v.Index(i))
		}
		c.buf = append(c.buf, ']')
	case reflect.String:
		c.text(v.String())
	case reflect.Bool:
		c.buf = strconv.AppendBool(c.buf, v.Bool())
	case reflect.Int:
		c.buf = strconv.AppendInt(c.buf, v.Int(), 10)
	case reflect.Float64:
		c.buf = strconv.AppendFloat(c.buf, v.Float(), 'f', -1, 64)
	default:
		panic("profiles: field of kind " + v.Kind().String() + " has no canonical form") // TestDigest walks every field
	}
}

func (c *canonicalizer) structure(v reflect.Value) {
	c.buf = append(c.buf, '{')
	first := true
	for _, field := range c.fields(v.Type()) {
		f := v.Field(field.index)
		if f.Kind() == reflect.Slice && f.Len() == 0 || f.IsZero() {
			continue
		}
		if !first {
			c.buf = append(c.buf, ',')
		}
		first = false
		c.buf = append(c.buf, field.key...)
		c.value(f)
	}
	c.buf = append(c.buf, '}')
}

// text quotes s as encoding/json does; the reasons are plain ASCII for the most part and need no look-up of escapes.
func (c *canonicalizer) text(s string) {
	for i := range len(s) {
		if b := s[i]; b < ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' {
			quoted, _ := json.Marshal(s) // strings can't fail
			c.buf = append(c.buf, quoted...)
			return
		}
	}
	c.buf = append(append(append(c.buf, '"'), s...), '"')
}
