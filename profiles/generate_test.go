// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write builtin_gen.go and the golden files")

// order: parents before children.
var order = []string{"base", "ring3", "strict", "ring2", "ring1"}

// resolveBuiltins resolves the built-ins from their YAML, with nothing generated in between.
func resolveBuiltins(t testing.TB) []Profile {
	t.Helper()
	table, rules := builtinTable, builtinRules
	defer func() { builtinTable, builtinRules = table, rules }()
	builtinTable, builtinRules = nil, nil
	var ps []Profile
	for _, name := range order {
		src, _ := BuiltinYAML(name)
		p, err := Sources{}.fromYAML(name, name+".yaml", []byte(src), []string{name})
		if err != nil {
			t.Fatal(err)
		}
		b := builtin{profile: p}
		for _, r := range p.Syscalls {
			b.rules = append(b.rules, uint16(len(builtinRules)))
			builtinRules = append(builtinRules, r)
		}
		b.profile.Syscalls = nil
		builtinTable = append(builtinTable, b)
		ps = append(ps, p)
	}
	return ps
}

// TestGenerated: builtin_gen.go is what the YAML says, byte for byte. A stale table would enforce an old policy.
func TestGenerated(t *testing.T) {
	names := sysNames(t)
	want := generate(t, resolveBuiltins(t), names)
	if *update {
		if err := os.WriteFile("builtin_gen.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile("builtin_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("builtin_gen.go is stale: run go generate ./profiles (-want +got):\n%s", diff)
	}
}

// TestBuiltinIsTheYAML: the table compiled in, through Builtin, equals the resolved YAML.
func TestBuiltinIsTheYAML(t *testing.T) {
	for _, want := range resolveBuiltins(t) {
		got, ok := Builtin(want.Name)
		if !ok {
			t.Fatalf("Builtin(%q) is missing", want.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-yaml +table):\n%s", want.Name, diff)
		}
	}
	if got := len(builtinTable); got != len(order) {
		t.Errorf("%d built-ins, want %d", got, len(order))
	}
}

func generate(t testing.TB, ps []Profile, names []string) []byte {
	t.Helper()
	var rules []string
	var b bytes.Buffer
	fmt.Fprint(&b, "// SPDX-License-Identifier: Apache-2.0\n\n// Code generated from the YAML files by go generate; DO NOT EDIT.\n\npackage profiles\n\n")
	table := &bytes.Buffer{}
	for _, p := range ps {
		var idx []string
		for _, r := range p.Syscalls {
			lit := literal(r)
			i := slices.Index(rules, lit)
			if i < 0 {
				i = len(rules)
				rules = append(rules, lit)
			}
			idx = append(idx, fmt.Sprint(i))
		}
		sum := p.digest()
		p.Syscalls = nil
		fmt.Fprintf(table, "{profile: %s,\nrules: []uint16{%s},\nsum: %q},\n", literal(p), strings.Join(idx, ", "), sum)
	}
	fmt.Fprintf(&b, "var builtinRules = []SyscallRule{\n%s,\n}\n\n", strings.Join(rules, ",\n"))
	fmt.Fprintf(&b, "var builtinTable = []builtin{\n%s}\n\n", table)
	fmt.Fprintf(&b, "var syscallNames = [...]string{\n")
	for _, n := range names {
		fmt.Fprintf(&b, "%q,\n", n)
	}
	fmt.Fprint(&b, "}\n")
	out, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func literal(v any) string { return strings.ReplaceAll(fmt.Sprintf("%#v", v), "profiles.", "") }

// sysNames are the calls of amd64 in golang.org/x/sys/unix, as the module's source has them.
func sysNames(t testing.TB) []string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("go list golang.org/x/sys: %v", err)
	}
	src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix/zsysnum_linux_amd64.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(src), -1) {
		nr, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		// The filter's own table ends at 469 (Linux 6.18), and the probe calls are for code the kernel itself writes
		// (uprobes): all of these are unknown numbers to the filter, ENOSYS.
		if nr <= 469 && nr != 335 && nr != 336 {
			names = append(names, strings.ToLower(m[1]))
		}
	}
	if len(names) < 350 {
		t.Fatalf("%d names in zsysnum_linux_amd64.go, want over 350", len(names))
	}
	slices.Sort(names)
	return names
}
