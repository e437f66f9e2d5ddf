// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// field is one of a record, written as a member, by its tag `log:"name way"`.
type field struct {
	name  string
	index int
	write memberWriter
}

// memberWriter writes what p points to as the member of that name, or reads it.
type memberWriter func(c *codec, name string, p any)

// writing are the ways: the codec's methods of these names.
var writing = map[string]memberWriter{
	"id":         way((*codec).id),
	"optID":      way((*codec).optID),
	"nullID":     way((*codec).nullID),
	"optIDs":     way((*codec).optIDs),
	"code":       way((*codec).code),
	"optCode":    way((*codec).optCode),
	"bool":       way((*codec).bool),
	"optBool":    way((*codec).optBool),
	"count":      way((*codec).count),
	"number":     way((*codec).number),
	"ring":       way(func(c *codec, name string, p *Ring) { c.ring(name, p, false) }),
	"ringOrNull": way(func(c *codec, name string, p *Ring) { c.ring(name, p, true) }),
	"digest":     way((*codec).digest),
	"instant":    way((*codec).instant),
	"optInstant": way((*codec).optInstant),
}

func way[T any](write func(*codec, string, *T)) memberWriter {
	return func(c *codec, name string, p any) {
		if t, ok := p.(*T); ok {
			write(c, name, t)
			return
		}
		c.refuse(name, errors.New("field of another type"))
	}
}

// members of each type of record, in the order of RFC 8785, found at its first use.
var members sync.Map

func membersOf(t reflect.Type) []field {
	if m, ok := members.Load(t); ok {
		return m.([]field)
	}
	var all []field
	for i := range t.NumField() {
		name, how, _ := strings.Cut(t.Field(i).Tag.Get("log"), " ")
		write := writing[how]
		if write == nil {
			write = func(c *codec, name string, _ any) { c.refuse(name, errors.New("field without a way to write it")) }
		}
		all = append(all, field{name, i, write})
	}
	slices.SortFunc(all, func(a, b field) int { return cmp.Compare(a.name, b.name) })
	members.Store(t, all)
	return all
}

// record writes or reads the members of r.
func (c *codec) record(r Record) {
	v := reflect.ValueOf(r).Elem()
	for _, m := range membersOf(v.Type()) {
		m.write(c, m.name, v.Field(m.index).Addr().Interface())
	}
}
