// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/hostcaps"
	"agentrun/netns"
)

// tale is what a page tells the reader to do: commands, each with the output that stands under it, and the files that the
// page asks to save before it.
type tale struct {
	line    int
	files   map[string]string
	command string
	want    []string
}

// saved ends the line before a block that is a file.
var saved = regexp.MustCompile("`([a-z_]+\\.[a-z]+)`:$")

// tales reads the fenced blocks of a page. A block of kind console has commands after "$ ", which go on after "> ", and
// what they print; a block after "Save this as `NAME`:" is that file. The reader runs all others, or none: not the test.
func tales(page string) []tale {
	var all []tale
	fence, before, name := "", "", ""
	files := map[string]string{}
	for n, line := range strings.Split(page, "\n") {
		if mark, ok := strings.CutPrefix(line, "```"); ok {
			opens := fence == ""
			if fence = ""; opens {
				fence, name = "text "+mark, ""
				if m := saved.FindStringSubmatch(before); m != nil {
					name = m[1]
				}
				before = ""
			}
			continue
		}
		command, isCommand := strings.CutPrefix(line, "$ ")
		more, isMore := strings.CutPrefix(line, "> ")
		switch {
		case fence == "" && line != "":
			before = line
		case fence != "" && name != "":
			files[name] += line + "\n"
		case fence == "text console" && isCommand:
			all = append(all, tale{line: n + 1, files: files, command: command})
			files = map[string]string{}
		case fence == "text console" && isMore && len(all) > 0:
			all[len(all)-1].command += "\n" + more
		case fence == "text console" && line != "" && len(all) > 0:
			all[len(all)-1].want = append(all[len(all)-1].want, line)
		}
	}
	return all
}

// follows tells what of want isn't in got: each wanted line is a fragment of a line of got, in order; … stands for any text.
func follows(want []string, got string) error {
	lines := strings.Split(got, "\n")
next:
	for _, w := range want {
		for n, line := range lines {
			rest, found := line, true
			for _, part := range strings.Split(w, "…") {
				part = strings.TrimSpace(part)
				_, after, ok := strings.Cut(rest, part)
				if found = ok; !ok {
					break
				}
				rest = after
			}
			if found {
				if strings.Trim(w, "… ") != "" {
					lines = lines[n+1:]
				}
				continue next
			}
		}
		return fmt.Errorf("want a line with %q", w)
	}
	return nil
}

// tell runs the commands of a page in one shell, as a reader does, and gives everything that isn't as the page says. A
// command that fails must be followed by echo $?.
func tell(t *testing.T, all []tale, start func(*exec.Cmd) error, dir string, env ...string) []error {
	t.Helper()
	const mark = "\x1e"
	var script strings.Builder
	for _, s := range all {
		for name, text := range s.files {
			fmt.Fprintf(&script, "cp '%s' '%s'\n", write(t, filepath.Join(t.TempDir(), name), text, 0o644), name)
		}
		// The status goes on to the next command, for echo $?.
		fmt.Fprintf(&script, "(exit ${rc:-0})\n%s\nrc=$?; printf '%s%%d%s' $rc\n", s.command, mark, mark)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*hang())
	defer cancel()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 5*time.Second
	if err := start(cmd); err != nil {
		return []error{err}
	}
	err := cmd.Wait()
	parts := strings.Split(out.String(), mark)
	var wrong []error
	for n, s := range all {
		if len(parts) < 2*n+2 {
			return append(wrong, fmt.Errorf("line %d: %q didn't end: %w\n%s", s.line, s.command, errors.Join(err, ctx.Err()), parts[len(parts)-1]))
		}
		got, code := parts[2*n], parts[2*n+1]
		if err := follows(s.want, got); err != nil {
			wrong = append(wrong, fmt.Errorf("line %d: %s: %w in\n%s", s.line, s.command, err, got))
		}
		if code != "0" && (n+1 == len(all) || all[n+1].command != "echo $?") {
			wrong = append(wrong, fmt.Errorf("line %d: %s: exit code %s\n%s", s.line, s.command, code, got))
		}
	}
	return wrong
}

// TestTutorial does what the pages tell a newcomer to do, with the real programs, and compares what they print.
func TestTutorial(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.Landlock(1))
	needProgram(t, "python3", "curl", "ip")
	for _, row := range []struct {
		page string
		min  int // commands: a check of nothing is no check
	}{
		{"README.md", 5},
		{"docs/tutorial.md", 20},
	} {
		t.Run(row.page, func(t *testing.T) {
			doPage(t, row.page, row.min, workspace(t), onExampleHost(t))
		})
	}
}

// doPage does what a page says, in a folder.
func doPage(t *testing.T, page string, least int, dir string, start func(*exec.Cmd) error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	all := tales(string(text))
	if len(all) < least {
		t.Fatalf("got %d commands, want at least %d", len(all), least)
	}
	p := newPlace(t)
	for _, err := range tell(t, all, start, dir, "AGENTRUN_NO_DAEMON=1",
		"PATH="+filepath.Dir(agentrun)+":"+os.Getenv("PATH"),
		"AGENTRUN_STATE_DIR="+p.state, "AGENTRUN_RUN_DIR="+p.run) {
		t.Errorf("%s: %v", page, err)
	}
}

// onExampleHost starts a command on a host of its own, where a cable leads to example.com, which has an address that is
// public anywhere else. Nothing goes beyond the two.
func onExampleHost(t *testing.T) func(*exec.Cmd) error {
	t.Helper()
	const address, network = "93.184.216.34", "/30"
	var host, site *netns.NS
	for _, ns := range []**netns.NS{&host, &site} {
		var err error
		if *ns, err = netns.New(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*ns).Close() })
	}
	ip := func(command string) error {
		out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, out)
		}
		return nil
	}
	err := errors.Join(
		host.Do(func() error {
			return errors.Join(ip("link set lo up"), ip("link add here type veth peer name there"),
				ip("link set there netns "+fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), site.Fd())), ip("addr add 93.184.216.33"+network+" dev here"), ip("link set here up"))
		}),
		site.Do(func() error {
			if err := errors.Join(ip("addr add "+address+network+" dev there"), ip("link set there up")); err != nil {
				return err
			}
			l, err := net.Listen("tcp", address+":80")
			if err != nil {
				return err
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintln(w, "<html><title>Example Domain</title></html>")
			})}
			t.Cleanup(func() { _ = server.Close() })
			go func() { _ = server.Serve(l) }()
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	hosts := write(t, filepath.Join(t.TempDir(), "hosts"), "127.0.0.1 localhost\n"+address+" example.com\n", 0o644)
	unshare, err := lookPath("unshare")
	if err != nil {
		t.Fatal(err)
	}
	return func(cmd *exec.Cmd) error {
		cmd.Args = append([]string{"unshare", "--mount", "--propagation", "private", "--", "sh", "-c",
			`mount --bind "$1" /etc/hosts && shift && exec "$@"`, "sh", hosts, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = unshare
		return host.Do(cmd.Start)
	}
}

// A page that tells something wrong is found out: each row is one.
func TestTutorialFindsMistakes(t *testing.T) {
	for _, row := range []struct {
		name, page string
		want       []string // of each error found, a part
	}{
		{"right", "Save this as `a.txt`:\n\n```\nx y\n```\n\n```console\n$ cat a.txt\nx\n$ echo one; false\n…ne\n$ echo $?\n1\n```", nil},
		{"in two lines", "```console\n$ echo a \\\n>   b\na b\n```", nil},
		{"another output", "```console\n$ echo one\ntwo\n```", []string{`line 2: echo one: want a line with "two"`}},
		{"another order", "```console\n$ printf 'a\\nb\\n'\nb\na\n```", []string{`want a line with "a"`}},
		{"another order in a line", "```console\n$ echo a b\nb … a\n```", []string{`want a line with "b … a"`}},
		{"no output", "```console\n$ true\nany\n```", []string{`want a line with "any"`}},
		{"a command fails", "```console\n$ sh -c 'exit 3'\n$ true\n```", []string{"exit code 3"}},
		{"another code", "```console\n$ false\n$ echo $?\n0\n```", []string{`want a line with "0"`}},
		{"no such program", "```console\n$ agentrun-nosuch\n```", []string{"exit code 127"}},
		{"the shell ends", "```console\n$ exit 0\n$ echo later\n```", []string{`"exit 0" didn't end`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			all := tales(row.page)
			if len(all) == 0 {
				t.Fatal("no commands")
			}
			got := tell(t, all, (*exec.Cmd).Start, t.TempDir())
			if len(got) != len(row.want) || slices.ContainsFunc(got, func(err error) bool {
				return !slices.ContainsFunc(row.want, func(w string) bool { return strings.Contains(err.Error(), w) })
			}) {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}
