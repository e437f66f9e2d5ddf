// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
	"agentrun/supervisor/outputs"
)

func file(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReadGateway(t *testing.T) {
	half := 0.5
	environ := func(name string) (string, bool) { return "v-" + name, name == "ONE" || name == "PATH" }
	for _, tt := range []struct {
		name, text string
		want       part
		env        []string
	}{
		{"empty", "", part{}, nil},
		{"comments", "# nothing\n", part{}, nil},
		{"of others", "tools: {x: {y: [1, {z: 2}]}}\nunknown: 1\n", part{}, nil},
		{"ports", "egress:\n  capture_ports: [22, 8443]\n  rules: [{host: a}, {host: b, intercept: false}]\n", part{CapturePorts: []uint16{22, 8443}}, nil},
		{"interception", "egress: {rules: [{host: a, intercept: true}, {host: b}]}\n", part{Intercepts: true}, nil},
		{"models", "llm: {limits: {calls: 7}, providers: [{dialects: [responses, messages], x: 1}, {dialects: [messages]}, {name: c}]}\n",
			part{Dialects: []string{"messages", "responses"}, ModelCalls: 7}, nil},
		{"presets", "egress: {presets: [npm]}\n", part{Intercepts: true}, nil},
		{"variables", "secrets:\n  a: {env: TWO}\n  b: {env: ONE}\n  c: {env: ONE}\n", part{variables: []string{"ONE", "TWO"}}, []string{"ONE=v-ONE"}},
		{"logs", "telemetry: {logs: {retention: 24h, sample: 0.5}}\n", part{Logs: outputs.Policy{Keep: 24 * time.Hour, Sample: &half}}, nil},
		{"files", "secrets: {k: {file: /s}}\ntools: {t: {mcp: {ca_file: \"\\x2fca\", url: https://h/}}, u: {command: {argv: [/bin/u, /s, rel]}}}\n",
			part{Named: []string{"/bin/u", "/ca", "/s"}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := file(t, tt.text, 0o644)
			for range 2 { // read, then kept
				got, err := ReadGateway(name, nil, false)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got.part, cmp.AllowUnexported(part{})); diff != "" || got.Path != name || string(got.Text) != tt.text {
					t.Errorf("got %s %q\n%s", got.Path, got.Text, diff)
				}
				if diff := cmp.Diff(tt.env, got.Environ(environ)); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestReadGatewayRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, path string
		is         error
		want       string
	}{
		{"named and not there", "/nonexistent/gateway.yaml", fs.ErrNotExist, "no such file"},
		{"writable by the group", file(t, "", 0o664), fs.ErrPermission, "mode 0664"},
		{"a folder", t.TempDir(), fs.ErrPermission, "no regular file"},
		{"too long", file(t, "#"+strings.Repeat("x", maxGateway), 0o600), nil, "longer than"},
		{"wrong", file(t, "\negress: {capture_ports: [ssh]}\n", 0o600), nil, `:2: egress.capture_ports[0]: want a whole number from 0 to 65535, got text "ssh"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadGateway(tt.path, nil, false)
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) || got.Path != "" {
				t.Errorf("got %+v, %v, want %q", got, err, tt.want)
			}
		})
	}
	if _, err := ReadGateway(file(t, "a: [", 0o600), nil, false); !isInvalid(err) {
		t.Errorf("got %v, want a problem of the file", err)
	}
}

// M-9: a run's own file may bring anything but other policies than a file of the node's has.
func TestM9NodesPolicyStays(t *testing.T) {
	rules := file(t, "policy: {dir: /p, remote: {url: 'https://h'}}\n", 0o600)
	same := file(t, "tools: {}\npolicy:\n  remote: {url: https://h}\n  dir: /p\n", 0o600)
	plain := file(t, "tools: {}\npolicy: {}\n", 0o600)
	for _, tt := range []struct {
		name, named string
		node        []string
		path        string
		want        error
	}{
		{"the node's", "", []string{rules}, rules, nil},
		{"another with the same section", same, []string{rules}, same, nil},
		{"another without", plain, []string{rules}, "", ErrOtherPolicy},
		{"another with less", file(t, "policy: {dir: /p}\n", 0o600), []string{rules}, "", ErrOtherPolicy},
		{"another of config.yaml before the machine's", "", []string{plain, rules}, "", ErrOtherPolicy},
		{"policies of its own", same, []string{plain}, same, nil},
		{"the node's is gone", plain, []string{"/nonexistent/g.yaml"}, "", fs.ErrNotExist},
		{"the node's is anybody's", plain, []string{file(t, "", 0o666)}, "", fs.ErrPermission},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadGateway(tt.named, tt.node, false)
			if !errors.Is(err, tt.want) || got.Path != tt.path {
				t.Errorf("got %q, %v, want %q, %v", got.Path, err, tt.path, tt.want)
			}
		})
	}
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*read.InvalidError](err)
	return ok
}

// What is put in the file's place is another value; who has the first keeps it. Many may ask at once.
func TestThreatTakeoverFileReplaced(t *testing.T) {
	name := file(t, "egress: {capture_ports: [22]}\n", 0o600)
	first, err := ReadGateway(name, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	other := file(t, "egress: {capture_ports: [23]}\n", 0o600)
	if err := os.Rename(other, name); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				second, err := ReadGateway(name, nil, false)
				if err != nil || second.CapturePorts[0] != 23 {
					t.Errorf("got %+v, %v", second, err)
				}
				_ = append(second.CapturePorts, 9) // a run's own ports
			}
		})
	}
	wg.Wait()
	if first.CapturePorts[0] != 22 || string(first.Text) != "egress: {capture_ports: [22]}\n" {
		t.Errorf("got %+v, want what was read", first)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("egress: {capture_ports: [22], rules: [{intercept: true}]}\nsecrets: {a: {env: B}}\ntelemetry: {logs: {sample: 1}}")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse(File{"gateway.yaml", []byte(text)})
		if (err != nil) != isInvalid(err) {
			t.Errorf("got %v", err)
		}
		for _, name := range p.Named {
			if name[0] != '/' {
				t.Errorf("%q is no absolute path", name)
			}
		}
	})
}
