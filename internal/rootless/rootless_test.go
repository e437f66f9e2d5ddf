// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/subid"
)

// ready is a host on which nothing is missing.
func ready() host {
	return host{
		uid: 1000, name: "alice",
		sysctl: func(string) string { return "" },
		read:   func(string) ([]byte, error) { return []byte("alice:100000:65536\n"), nil },
		tool:   func(name string) (string, error) { return "/usr/bin/" + name, nil },
	}
}

func TestM1MissingForOrdinaryUsers(t *testing.T) {
	if _, missing := ready().mapping(); len(missing) > 0 {
		t.Fatalf("got %v on a host that has all of it", missing)
	}
	off := func(key, value string) func(*host) {
		return func(h *host) {
			h.sysctl = func(name string) string {
				if name == key {
					return value
				}
				return ""
			}
		}
	}
	file := func(text string) func(*host) {
		return func(h *host) { h.read = func(string) ([]byte, error) { return []byte(text), nil } }
	}
	for _, c := range []struct {
		what string
		lack func(*host)
		want []string // names
		says string
	}{
		{"no user namespaces", off("user/max_user_namespaces", "0"), []string{"userns"}, "user.max_user_namespaces"},
		{"Debian's switch", off("kernel/unprivileged_userns_clone", "0"), []string{"userns"}, "kernel.unprivileged_userns_clone"},
		{"AppArmor's restriction", off("kernel/apparmor_restrict_unprivileged_userns", "1"), []string{"userns"}, "kernel.apparmor_restrict_unprivileged_userns"},
		{"no account", func(h *host) {
			h.name, h.foreign = "", true
			h.read = func(string) ([]byte, error) { return []byte("1000:100000:65536\n"), nil }
		}, []string{"account"}, "user id 1000 has no name"},
		{"an account elsewhere, no range", func(h *host) { h.foreign = true; file("bob:100000:65536\n")(h) }, []string{"subordinate-ids", "subordinate-ids"}, "user alice 0 ids"},
		{"no range", file("bob:100000:65536\n"), []string{"subordinate-ids", "subordinate-ids"}, "user alice 0 ids"},
		{"a small range", file("alice:100000:255\n"), []string{"subordinate-ids", "subordinate-ids"}, "255 ids"},
		{"a malformed file", file("alice:100000:65536\nbob\n"), []string{"subordinate-ids", "subordinate-ids"}, "line 2"},
		{"no file", func(h *host) { h.read = func(string) ([]byte, error) { return nil, fs.ErrNotExist } }, []string{"subordinate-ids", "subordinate-ids"}, "0 ids"},
		{"an unreadable file", func(h *host) { h.read = func(string) ([]byte, error) { return nil, fs.ErrPermission } }, []string{"subordinate-ids", "subordinate-ids"}, "permission denied"},
		{"no tools", func(h *host) {
			h.tool = func(name string) (string, error) { return "", errors.New(name + " is not installed") }
		}, []string{"newuidmap", "newuidmap"}, "newgidmap is not installed"},
	} {
		h := ready()
		c.lack(&h)
		_, missing := h.mapping()
		var names []string
		for _, m := range missing {
			names = append(names, m.Name)
			if m.Get == "" {
				t.Errorf("%s: nothing says how to get %s", c.what, m.Name)
			}
		}
		if d := cmp.Diff(c.want, names); d != "" {
			t.Errorf("%s: (-want +got)\n%s", c.what, d)
		}
		if err := join(missing); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q, want one line with %q", c.what, err, c.says)
		}
	}
}

// usermod(8) can't give ids to an account that /etc/passwd doesn't have: the way out is then another one.
func TestM1RangesOfForeignAccounts(t *testing.T) {
	for name, c := range map[string]struct {
		foreign bool
		want    string
	}{"of /etc/passwd": {false, "usermod "}, "of LDAP": {true, "the line alice:100000:65536 "}} {
		t.Run(name, func(t *testing.T) {
			h := ready()
			h.foreign, h.read = c.foreign, func(string) ([]byte, error) { return nil, nil }
			if _, err := h.ranges("/etc/subuid"); err == nil || !strings.HasPrefix(err.Get, c.want) {
				t.Errorf("got %+v, want %q first in the way out", err, c.want)
			}
		})
	}
}

// The answer of getent(1) is a line of passwd(5); anything else names nobody.
func TestM1AccountName(t *testing.T) {
	for _, c := range []struct{ what, line, want string }{
		{"an account", "carol:*:1000:1000:Carol:/home/carol:/bin/sh\n", "carol"},
		{"another's id", "carol:*:1001:1000:Carol:/home/carol:/bin/sh\n", ""},
		{"two lines", "carol:*:1000:1000:Carol:/:/bin/sh\ndave:*:1000:1000:::\n", ""},
		{"no name", ":*:1000:1000:::\n", ""},
		{"cut short", "carol:*:1000\n", ""},
		{"nothing", "", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got := accountName(c.line, 1000); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// The ids of agents come out of the subordinate range alone, and the same number of both kinds.
func TestM1Mapping(t *testing.T) {
	m := mapping{uids: subid.Range{First: 100000, Count: 65536}, gids: subid.Range{First: 200000, Count: 300}, uidmap: "/u", gmap: "/g"}
	got := m.args(77)
	want := []string{"77", "/u", "0", "", "1", "1", "100000", "300", "/g", "0", "", "1", "1", "200000", "300"}
	for i := range want {
		if want[i] != "" && (i >= len(got) || got[i] != want[i]) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	if code := help(slices.Clone(got[:5])); code != 2 {
		t.Errorf("a helper with half of its arguments: got %d, want 2", code)
	}
}

func TestM1IDsOfTheNamespace(t *testing.T) {
	const whole = "         0          0 4294967295\n"
	for _, c := range []struct {
		uids, gids string
		want       *IDs
		fails      bool
	}{
		{whole, whole, nil, false},
		{"0 1000 1\n1 100000 65536\n", "0 1000 1\n1 100000 65536\n", &IDs{1000, 65536}, false},
		{"0 1000 1\n1 100000 65536\n", "0 1000 1\n1 200000 300\n", &IDs{1000, 300}, false},
		{"0 1000 1\n", "0 1000 1\n", &IDs{1000, 0}, false},
		{"0 1000 1\n", whole, &IDs{1000, 0}, false},
		{"1 100000 10\n0 1000 1\n11 5 5\n", "0 100 100\n", &IDs{1000, 15}, false}, // in any order
		{"0 100000 65536\n", "0 100000 65536\n", &IDs{100000, 65535}, false},      // a container's root
		{"0 1000 1\n5 100000 65536\n", "0 0 99\n", &IDs{1000, 0}, false},          // a gap
		{"", "", nil, true},
		{"0 1000 1\n", "", nil, true},
		{"1000 1000 1\n", "0 0 1\n", nil, true},
		{"0 1000\n", "0 0 1\n", nil, true},
		{"0 -1 1\n", "0 0 1\n", nil, true},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"uid_map": c.uids, "gid_map": c.gids} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := read(dir)
		if d := cmp.Diff(c.want, got); d != "" || (err != nil) != c.fails {
			t.Errorf("%q, %q: error %v (-want +got)\n%s", c.uids, c.gids, err, d)
		}
	}
}

// A variable alone brings nobody anywhere: without the unshare(2) of the start, and without a helper, Arrived is an error or nothing.
func TestM1VariablesGiveNothing(t *testing.T) {
	t.Setenv(linkVariable, "0,1,1")
	if err := Arrived(); err != nil {
		t.Errorf("got %v, want nothing done", err)
	}
	if os.Getenv(linkVariable) != "" {
		t.Error("the variable is still there")
	}
	for _, link := range []string{"", "a,b,c", "0,1,2", "3", "3,4", "-1,-1,-1", "3,4,5,6"} {
		if err := await(link); err == nil {
			t.Errorf("link %q: got no error", link)
		}
	}
}

func TestM3DelegationIsLookedAt(t *testing.T) {
	dir := t.TempDir() // no cgroup file system
	var m *MissingError
	if err := delegated(dir, "/proc/self/cgroup", os.Geteuid(), false); !errors.As(err, &m) || m.Name != "cgroup-delegation" || m.Get == "" {
		t.Errorf("got %v, want cgroup-delegation and how to get it", err)
	}
	for text, want := range map[string]string{
		"0::/\n":                                "/c",
		"0::/user.slice/a.scope\n":              "/c/user.slice/a.scope",
		"0::/user.slice/a.scope/" + leaf + "\n": "/c/user.slice/a.scope/" + leaf,
		"4:memory:/x\n0::/y\n":                  "/c/y",
		"0::/../z\n":                            "",
		"4:memory:/x\n":                         "",
	} {
		name := filepath.Join(dir, "cgroup")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ownCgroup("/c", name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
}
