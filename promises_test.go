// SPDX-License-Identifier: Apache-2.0

package agentrun

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// hollow are the functions, methods and packages that a test named in SPECIFICATION uses and no program does,
// with the reason. A package stands for all of it. Those that issue 13 or nobody yet decides about are
// promised and wired to nothing.
var hollow = map[string]string{
	"rings.().Handshake": "undecided: Join opens a session by itself (H-29)",

	"hypervisor.().Kills":          "the account of a kill switch as a test reads it; operators read the audit",
	"audit.NewMemory":              "a log without a disk, for tests of what is recorded",
	"internal/fault.Set":           "plants faults in the test's own process; programs take theirs from the environment",
	"store/storetest":              "tests any store",
	"witness/noncetest":            "tests any store of nonces",
	"toolproxy/gate/gatetest":      "plays the supervisor",
	"tools/man/page":               "makes the man pages, of what a program says of itself",
	"runtime/internal/stub/cparse": "runs the stub's own parser, in C, below Go's fuzzer",
}

// mains are the programs that an operator gets.
var mains = []string{"cmd/agentrun", "cmd/agentrun-gateway", "cmd/agentrun-safety", "cmd/agentrun-image", "cmd/agentrun-oci"}

// program is what can be known of the tree by names alone: each top-level declaration and what it names. A
// method's body belongs to its type; the method itself is used where anything of its name is selected.
// Shadowed names count as uses: code is rather taken for used, and what is found here is really used by
// nobody.
type program struct {
	uses  map[string][]string // "rings.ChildRing" → what it names
	funcs map[string]bool     // those that are functions
	// methods are those of a folder's types, as "rings.().Risk"; names of the form ".().Risk" in uses are
	// selections of one.
	methods map[string]bool
}

func newProgram() *program {
	return &program{uses: map[string][]string{}, funcs: map[string]bool{}, methods: map[string]bool{}}
}

// add reads the Go files of a folder that keep wants.
func (p *program) add(t *testing.T, folder string, keep func(fs.FileInfo) bool) {
	t.Helper()
	//nolint:staticcheck // build tags don't matter here
	pkgs, err := parser.ParseDir(token.NewFileSet(), folder, keep, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range pkgs {
		for _, f := range pkg.Files {
			p.file(folder, f)
		}
	}
}

func (p *program) file(folder string, f *ast.File) {
	ours := map[string]string{}
	for _, imp := range f.Imports {
		name, found := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), "agentrun/")
		switch {
		case found && imp.Name != nil:
			ours[imp.Name.Name] = name
		case found:
			ours[path.Base(name)] = name
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				p.methods[folder+".()."+name] = true
				name = receiver(d.Recv.List[0].Type)
			} else {
				p.funcs[folder+"."+name] = true
			}
			p.node(folder, name, d, ours)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					p.node(folder, s.Name.Name, s, ours)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						p.node(folder, name.Name, s, ours)
					}
				}
			}
		}
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// node notes what n names: everything of its own folder and, through their imports, of our others.
func (p *program) node(folder, name string, n ast.Node, ours map[string]string) {
	self := folder + "." + name
	uses := p.uses[self]
	selected := map[*ast.Ident]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			selected[n.Sel] = true
			uses = append(uses, ".()."+n.Sel.Name)
			if x, ok := n.X.(*ast.Ident); ok && ours[x.Name] != "" {
				uses = append(uses, ours[x.Name]+"."+n.Sel.Name)
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				selected[key] = true // a field; a constant as a key of a map is used elsewhere too
			}
		case *ast.Ident:
			if !selected[n] {
				uses = append(uses, folder+"."+n.Name)
			}
		}
		return true
	})
	p.uses[self] = uses
}

// reach gives all that roots lead to.
func (p *program) reach(roots ...string) map[string]bool {
	found := map[string]bool{}
	for len(roots) > 0 {
		at := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		uses, declared := p.uses[at]
		if found[at] || !declared && !strings.HasPrefix(at, ".().") {
			continue
		}
		found[at] = true
		roots = append(roots, uses...)
	}
	return found
}

func isTest(i fs.FileInfo) bool { return strings.HasSuffix(i.Name(), "_test.go") }

// A test of code that no program runs proves nothing about a program.
func TestSpecificationsTestsReachPrograms(t *testing.T) {
	linked, tree, roots := map[string]bool{}, newProgram(), []string{}
	for _, main := range mains {
		for _, dep := range deps(t, main) {
			if folder, ours := strings.CutPrefix(dep, "agentrun/"); ours && !linked[folder] {
				linked[folder] = true
				tree.add(t, folder, func(i fs.FileInfo) bool { return !isTest(i) })
				roots = append(roots, folder+".init", folder+"._")
			}
		}
		roots = append(roots, main+".main")
	}
	live := tree.reach(roots...)
	found := map[string][]string{}
	tests := map[string]*program{}
	for _, row := range specification(t) {
		folder, name := path.Dir(row.file), row.test
		if folder == "." || strings.HasPrefix(folder, "test/") {
			continue // no test, one of the tree, or one that starts the programs itself
		}
		p := tests[folder]
		if p == nil {
			p = newProgram()
			p.add(t, folder, isTest)
			tests[folder] = p
		}
		judgeTest(t, folder, name, p, tree, linked, live, found)
	}
	if len(tests) == 0 || len(live) < 1000 {
		t.Fatalf("tests of %d folders and %d declarations in use: a check of nothing is no check", len(tests), len(live))
	}
	for what, by := range found {
		if folder, _, _ := strings.Cut(what, "."); hollow[what] == "" && hollow[folder] == "" {
			slices.Sort(by)
			t.Errorf("%s is what %v use and no program does: use it, or take it out with what SPECIFICATION.md promises",
				what, slices.Compact(by))
		}
	}
	for what := range hollow {
		met := func(f string) bool { return f == what || strings.HasPrefix(f, what+".") }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(found)), met) {
			t.Errorf("%s is in hollow and needn't be any more", what)
		}
	}
}

// judgeTest adds what a test calls, itself or by the helpers of its package, that no program has.
func judgeTest(
	t *testing.T, folder, name string, p, tree *program, linked, live map[string]bool, found map[string][]string,
) {
	t.Helper()
	lively := false
	if !p.funcs[folder+"."+name] {
		t.Errorf("SPECIFICATION.md: there is no %s in %s", name, folder)
		return
	}
	for own := range p.reach(folder+"."+name, folder+".TestMain") {
		for _, use := range p.uses[own] {
			in := use[:strings.LastIndex(use, ".")]
			switch {
			case in == ".()":
				if !live[use] && tree.methods[folder+use] {
					found[folder+use] = append(found[folder+use], name)
				}
			case live[use]:
				lively = true
			case p.uses[use] != nil || in == folder && !tree.funcs[use]:
			case !linked[in], tree.funcs[use]:
				found[use] = append(found[use], name)
			}
		}
	}
	if !lively && hollow[folder] == "" {
		t.Errorf("%s: %s reaches no code of a program", folder, name)
	}
}
