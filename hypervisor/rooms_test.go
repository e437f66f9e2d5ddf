// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// rooms are the three of doc.go, from the ground up: files of a room begin with its name, all others are the node's.
var rooms = []string{"node", "live", "broker"}

func roomOf(file string) int {
	for i, name := range rooms {
		if base := filepath.Base(file); base == name+".go" || strings.HasPrefix(base, name+"_") {
			return i
		}
	}
	return 0
}

// What is known of others' packages doesn't matter here.
type strangers struct{}

func (strangers) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// A room knows those below it and nothing of those above: neither their types nor their functions, methods, fields and constants.
func TestRoomsHaveBorders(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	found := map[int]int{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		found[roomOf(name)]++
	}
	if len(found) != len(rooms) {
		t.Fatalf("got files of %d rooms, want %v", len(found), rooms)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: strangers{}, Error: func(error) {}}
	pkg, _ := conf.Check("agentrun/hypervisor", set, files, &info) // errors: it knows nothing of what is imported
	looked := 0
	for id, obj := range info.Uses {
		if obj.Pkg() != pkg || !obj.Pos().IsValid() {
			continue
		}
		looked++
		from, to := set.Position(id.Pos()), set.Position(obj.Pos())
		if roomOf(to.Filename) > roomOf(from.Filename) {
			t.Errorf("%s: %s is of room %s (%s), above room %s", from, id.Name, rooms[roomOf(to.Filename)], to.Filename, rooms[roomOf(from.Filename)])
		}
	}
	if looked < 5000 {
		t.Errorf("looked at %d names: a check of nothing is no check", looked)
	}
}
