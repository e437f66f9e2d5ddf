// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/runtime"
)

// operatorRun runs a command line in this process and returns its stdout, stderr and exit code.
func operatorRun(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		return f
	}
	in, out, errs := file("in", stdin), file("out", ""), file("err", "")
	defer func(i, o, e *os.File) { os.Stdin, os.Stdout, os.Stderr = i, o, e }(os.Stdin, os.Stdout, os.Stderr)
	os.Stdin, os.Stdout, os.Stderr = in, out, errs
	code = run(context.Background(), append([]string{"agentrun"}, args...))
	text := func(f *os.File) string {
		f.Close()
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return text(out), text(errs), code
}

// The whole way: a key, its line on the host, an attestation, and what the host says of it.
func TestH12OperatorCommands(t *testing.T) {
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	t.Setenv("AGENTRUN_OPERATORS", filepath.Join(config, "operators"))
	ok := func(stdin string, args ...string) string {
		t.Helper()
		out, errs, code := operatorRun(t, stdin, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, errs)
		}
		return strings.TrimSpace(out)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		out, errs, code := operatorRun(t, "", args...)
		if code != runtime.ExitFailed || out != "" || !strings.Contains(errs, want) || strings.Count(errs, "hint: ") != 1 {
			t.Errorf("%v: exit code %d, %q, %q, want %d, nothing, %q and a hint", args, code, out, errs, runtime.ExitFailed, want)
		}
	}
	refused("no such file", "operator", "list")
	refused("no such file", "operator", "sign", "--action", "release-quarantine", "--subject", "agent:a")

	verifier := ok("", "operator", "keygen", "--name", "alice")
	refused("file exists", "operator", "keygen", "--name", "alice")
	if err := os.WriteFile(filepath.Join(config, "operators"), []byte("# on call\n"+verifier+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	name, rest, _ := strings.Cut(verifier, "+")
	hash, _, _ := strings.Cut(rest, "+") // not from the end: base64 has a + of its own
	id := name + "+" + hash
	if got := ok("", "operator", "list"); got != id {
		t.Errorf("list: %q, want %q", got, id)
	}
	sign := []string{"operator", "sign", "--action", "release-quarantine", "--subject", "agent:a"}
	attestation := ok("", sign...)
	if got := ok("", "operator", "verify", attestation); !strings.HasPrefix(got, "release-quarantine of agent:a, once, until ") || !strings.HasSuffix(got, "by "+id) {
		t.Errorf("verify: %q", got)
	}
	key, err := os.ReadFile(filepath.Join(config, "agentrun", "operator.key"))
	if err != nil {
		t.Fatal(err)
	}
	if got := ok(string(key), append(sign, "--key", "-")...); !strings.Contains(got, "/"+id+"/") {
		t.Errorf("signed with a key from stdin: %q", got)
	}
	refused("not that key's", "operator", "verify", strings.Replace(attestation, "agent:a", "agent:b", 1))
	refused("too far ahead", append(sign, "--ttl", "25h")...)
	refused("expired", append(sign, "--ttl", "0s")...)
	refused("KIND:ID", "operator", "sign", "--action", "release-quarantine", "--subject", "a")
	refused("no command takes one", "operator", "sign", "--action", "ring0-action", "--subject", "action:a")
	refused("--action is missing", "operator", "sign", "--subject", "agent:a")
	refused("name", "operator", "keygen", "--name", "a+b", "--out", filepath.Join(config, "other"))
	if err := os.Chmod(filepath.Join(config, "agentrun", "operator.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused("others have access", sign...)
}

// Of flag, environment, the folder of --config, and the usual places, the first counts.
func TestOperatorsFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("AGENTRUN_OPERATORS", "")
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	told := func(args ...string) {
		t.Helper()
		want := args[0]
		if _, errs, _ := operatorRun(t, "", args[1:]...); !strings.Contains(errs, want+": ") {
			t.Errorf("%v: %q, want it to be about %s", args[1:], errs, want)
		}
	}
	config := []string{"--config", filepath.Join(dir, "config.yaml")}
	told(append(append([]string{filepath.Join(dir, "operators")}, config...), "operator", "list")...)
	t.Setenv("AGENTRUN_OPERATORS", "/nonexistent/env")
	told(append(append([]string{"/nonexistent/env"}, config...), "operator", "list")...)
	told(append(append([]string{"/nonexistent/flag"}, config...), "operator", "list", "--operators", "/nonexistent/flag")...)
}
