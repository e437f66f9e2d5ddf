// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Git makes a bare repository NAME.git under dir with one commit, whose file README holds text, and serves it by git's own
// http-backend at /git/NAME.git, for reading.
func Git(dir, name, text string) (http.Handler, error) {
	exe, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("git --exec-path: %w", err)
	}
	backend := filepath.Join(strings.TrimSpace(string(exe)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		return nil, err
	}
	work, bare := filepath.Join(dir, name), filepath.Join(dir, "bare", name+".git")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(work, "README"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", work},
		{"-C", work, "add", "README"},
		{"-C", work, "-c", "user.name=test", "-c", "user.email=test@repo.test", "commit", "-q", "-m", "one"},
		{"clone", "-q", "--bare", work, bare},
		{"-C", bare, "config", "http.receivepack", "false"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Env = gitEnv()
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("git %v: %w: %s", args, err, out)
		}
	}
	return &cgi.Handler{
		Path: backend, Root: "/git", Dir: filepath.Join(dir, "bare"), Stderr: os.Stderr,
		Env: append(gitEnv(), "GIT_PROJECT_ROOT="+filepath.Join(dir, "bare"), "GIT_HTTP_EXPORT_ALL=1"),
	}, nil
}

// gitEnv keeps the settings of whoever runs the tests out.
func gitEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
}
