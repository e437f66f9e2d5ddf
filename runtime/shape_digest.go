// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"reflect"

	"agentrun/fsjail"
)

// digestText is what a digest is taken of. Each text has its length before it, so that no two lists of values
// are written alike.
type digestText struct{ buf []byte }

func (d *digestText) number(n uint64) { d.buf = binary.LittleEndian.AppendUint64(d.buf, n) }

func (d *digestText) text(s string) {
	d.number(uint64(len(s)))
	d.buf = append(d.buf, s...)
}

func (d *digestText) flags(set ...bool) {
	var bits uint64
	for i, on := range set {
		if on {
			bits |= 1 << i
		}
	}
	d.number(bits)
}

// digestOf is that of every exported field of a plan, with the text of its files or without. encoding/json would have to get to know the types
// first, which takes half a millisecond.
func digestOf(p Plan, texts bool) string {
	d := digestText{buf: make([]byte, 0, 16<<10)}
	entries := p.Entries
	p.Entries = nil
	d.value(reflect.ValueOf(p))
	d.number(uint64(len(entries)))
	for _, e := range entries {
		if !texts {
			e.Content = ""
		}
		d.entry(&e)
	}
	return d.sum()
}

// value is for what plans are made of; TestPlanDigestCountsEveryField meets each kind of it.
func (d *digestText) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		d.text(v.String())
	case reflect.Bool:
		d.flags(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.number(uint64(v.Int())) //nolint:gosec // only its bits matter
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.number(v.Uint())
	case reflect.Float64:
		d.number(math.Float64bits(v.Float()))
	case reflect.Pointer:
		d.flags(v.IsNil())
		if !v.IsNil() {
			d.value(v.Elem())
		}
	case reflect.Slice:
		d.number(uint64(v.Len()))
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanInterface() {
				d.value(f)
			}
		}
	default:
		panic("a plan has a " + v.Type().String() + ", which its digest doesn't know")
	}
}

// entry writes every field of an entry; TestShapeKeyCountsEveryField changes each.
func (d *digestText) entry(e *fsjail.Entry) {
	d.text(string(e.Kind))
	d.text(e.Target)
	d.text(e.Source)
	d.text(e.Content)
	d.number(uint64(e.Mode))
	d.number(uint64(e.Size)) //nolint:gosec // only its bits matter
	d.flags(e.Agent, e.Writable, e.Live, e.Exec, e.Device, e.IsFile, e.Owner != nil, e.Guard, e.Shifting)
	if e.Owner != nil {
		d.number(uint64(e.Owner.UID))
		d.number(uint64(e.Owner.GID))
	}
	d.number(uint64(len(e.Sealed)))
	for _, dir := range e.Sealed {
		d.text(dir)
	}
	d.text(e.Changes)
	d.text(e.Why)
}

func (d *digestText) sum() string {
	sum := sha256.Sum256(d.buf)
	return hex.EncodeToString(sum[:])
}
