// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// In a folder of their own, because the go command takes C files beside Go files for cgo's.
//
//go:embed c/*.c
var sources embed.FS

// compile builds the C programs, static so that they run in any root view.
func (b *bench) compile() error {
	if err := os.Mkdir(b.bin, 0o755); err != nil {
		return err
	}
	files, err := sources.ReadDir("c")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := sources.ReadFile("c/" + f.Name())
		if err != nil {
			return err
		}
		out := b.path(strings.TrimSuffix(f.Name(), ".c"))
		cc := exec.CommandContext(b.ctx, "gcc", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-x", "c", "-o", out, "-")
		cc.Stdin = strings.NewReader(string(text))
		if msg, err := cc.CombinedOutput(); err != nil {
			return fmt.Errorf("gcc %s: %w: %s", f.Name(), err, msg)
		}
	}
	return nil
}

// emptyGo builds the Go program that does nothing.
func (b *bench) emptyGo() (string, error) {
	dir := filepath.Join(b.dir, "empty")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for name, text := range map[string]string{"go.mod": "module empty\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.CommandContext(b.ctx, "go", "build", "-o", b.path("empty-go"), ".")
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build of an empty program: %w: %s", err, msg)
	}
	return b.path("empty-go"), nil
}
