// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type lasting struct{ fakeHost }

func (*lasting) Outlives() bool { return true }

// A file that isn't agentrun-oci's ends nothing but its own run, and a daemon reads none for whoever asks.
func TestBundleOfOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	for _, tt := range []struct {
		name, text string
		host       Host
		want       string
	}{
		{"no process", `{"ociVersion":"1.0.2","linux":{}}`, &fakeHost{}, "process and linux"},
		{"no linux", `{"ociVersion":"1.0.2","process":{"cwd":"/"}}`, &fakeHost{}, "process and linux"},
		{"another format", `{"images": 3}`, &fakeHost{}, "images"},
		{"to a daemon", `{"ociVersion":"1.0.2","process":{"cwd":"/"},"linux":{}}`, &lasting{}, "--no-daemon"},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := newRun(t.Context(), testNode(t), &Caller{}, tt.host, &Request{Bundle: file})
		if err := s.readBundle(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
