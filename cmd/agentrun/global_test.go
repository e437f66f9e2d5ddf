// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/supervisor"
)

// M-22: the bound can be given up, knowingly and not for ever.
func TestM22ApplyTimeIsBounded(t *testing.T) {
	for at, ok := range map[time.Duration]bool{0: true, 90 * time.Millisecond: true, 5 * time.Second: true, time.Millisecond: false, -time.Second: false, time.Minute: false} {
		if err := (liveConfig{ApplyTime: at}).check(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "live.apply_time") {
			t.Errorf("%v: got %v", at, err)
		}
	}
}

// Without HOME an ordinary user's state isn't what the current folder has by that name: an agent may have written it, with scores of its own.
func TestStateIsNotTheCurrentFolders(t *testing.T) {
	for _, tt := range []struct {
		name    string
		environ []string
		want    string
	}{
		{"nothing", nil, ""},
		{"an empty HOME", []string{"HOME="}, ""},
		{"a relative HOME", []string{"HOME=home", "XDG_STATE_HOME=state"}, ""},
		{"HOME", []string{"HOME=/home/u"}, "/home/u/.local/state/agentrun"},
		{"XDG_STATE_HOME", []string{"XDG_STATE_HOME=/state", "HOME=/home/u"}, "/state/agentrun"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			by := &supervisor.Caller{Environ: tt.environ, Dir: t.TempDir()}
			if got := usersDir(by, "XDG_STATE_HOME", ".local/state"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Whoever could write the file could name programs, profiles and who may use the control sockets.
func TestThreatTakeoverForeignConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte("log_level: info\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path string
		mode       os.FileMode
		want       string
	}{
		{"its owner's", file, 0o644, ""},
		{"the group may write it", file, 0o664, "mode 0664"},
		{"others may write it", file, 0o646, "mode 0646"},
		{"a folder", dir, 0o700, "no regular file"},
		{"not there", file + "2", 0, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.Chmod(tt.path, tt.mode); err != nil && tt.mode != 0 {
				t.Fatal(err)
			}
			cfg, err := readConfig(supervisor.OwnCaller(), tt.path)
			if tt.want == "" {
				if err != nil || cfg.LogLevel != "info" || cfg.Kill.File != file {
					t.Errorf("got %+v, %v", cfg, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || cfg.LogLevel != "" {
				t.Errorf("got %+v, %v, want %q", cfg, err, tt.want)
			}
			if told := supervisor.Hint(err); errors.Is(err, fs.ErrPermission) != strings.Contains(told, "chmod go-w") {
				t.Errorf("hint: %q", told)
			}
		})
	}
}

// M-2, M-9: a key of which a template left nothing isn't left out: keys would be optional then, images unsigned, no policy asked.
func TestConfigurationWithEmptyText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	for text, want := range map[string]string{
		"keys: ''": "keys: is empty", "gateway: \"\"": "gateway: is empty", "images: {signed_by: ''}": "images.signed_by: is empty", "audit: {sync: ''}": "audit.sync: is empty",
		"state_dir: ''": "state_dir: is empty", "kill: {handlers: [{name: '', command: [/bin/true]}]}": "kill.handlers[0].name: is empty",
		"keys: optional": "", "{}": "", "kill: {handlers: [{name: a, command: [/bin/true, '']}]}": "",
	} {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfig(supervisor.OwnCaller(), file); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
