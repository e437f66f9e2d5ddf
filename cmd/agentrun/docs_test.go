// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

// A command that the index of docs/cli.md leaves out is found by nobody who reads there what there is.
func TestIndexHasEveryCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	index, _, found := strings.Cut(string(page), "Exit codes and the status file")
	if !found {
		t.Fatal("docs/cli.md: the end of the index isn't where it was")
	}
	for _, c := range newApp().Commands {
		if !c.Hidden && !strings.Contains(index, "`"+c.Name+"`") {
			t.Errorf("docs/cli.md: the index has no %s", c.Name)
		}
	}
}
