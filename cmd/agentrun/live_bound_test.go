// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/control"
)

// The verbs over real sockets: what the fake leaves out is package control.
func TestM23OverSockets(t *testing.T) {
	run := t.TempDir()
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 2)
	listen := func(name string, f *fakeSuper) {
		t.Helper()
		l, err := control.Listen(run, name, control.Access{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			served <- (&control.Server{Controller: f, Report: func(err error) { t.Log(err) }}).Serve(ctx, l)
		}()
	}
	one := &fakeSuper{
		boxes:  []control.Sandbox{box("oneoneoneoneone1", named("first"), ofAgent("a"), detached)},
		events: []control.Event{event(1, 0, control.EventStarted, "oneoneoneoneone1")},
		status: map[string]string{"oneoneoneoneone1": `{"state":"exited","exit_code":9}`}, output: "written\n",
		refuse: map[string]error{"elevate": &control.Error{Status: 409, Code: "insufficient_trust", Message: "too little", Hint: "earn it"}},
	}
	one.inside = control.Inspection{Sandbox: one.boxes[0], Plan: []byte(`{"digest":"d1"}`)}
	one.attach = func(conn io.ReadWriter) error {
		c := control.NewAttachServer(conn)
		_, p, err := c.Next()
		return errors.Join(err, c.Send(control.Stdout, p), c.SendExit(4))
	}
	listen("oneoneoneoneone1", one)
	listen("daemon", &fakeSuper{boxes: []control.Sandbox{box("twotwotwotwotwo2")}})
	defer func() {
		end()
		for range 2 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
	}()
	l, _ := liveOn(t)
	l.runs = func() liveRuns { return boundRuns{runDir: run} }
	for _, tt := range []struct {
		line string
		code int
		says string
	}{
		{"ps -q", 0, "oneoneoneoneone1\ntwotwotwotwotwo2\n"},
		{"inspect first", 0, "plan        d1"},
		{"freeze one two", 0, "run twotwotwotwotwo2 is frozen"},
		{"thaw o", 0, "goes on"},
		{"freeze nobody", 1, "not_found"},
		{"update two --memory 512M", 0, "memory 512MiB"},
		{"elevate first --to 2 --reason x", 1, "too little (insufficient_trust)\nhint: earn it"},
		{"events", 0, "started"},
		{"wait first", 9, ""},
		{"output first", 0, "written"},
		{"attach first", 4, "typed"},
		{"kill --all", 0, "run twotwotwotwotwo2 is dead"},
	} {
		out, errs, code := liveDo(t, l, "typed", strings.Fields(tt.line)...)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: got %d, %q, %q; want %d and %q", tt.line, code, out, errs, tt.code, tt.says)
		}
	}
	// One that accepts and never answers.
	hung, err := net.Listen("unix", filepath.Join(shortDir(t, run), "hung.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	start := time.Now()
	out, errs, code := liveDo(t, l, "", "ps", "-q")
	if code != 1 || !strings.Contains(errs, "hung") || !strings.Contains(out, "twotwotwotwotwo2") {
		t.Errorf("got %d after %v, %q, %q; want the others, and the hung one named", code, time.Since(start), out, errs)
	}
}

// shortDir is the folder of the sockets by a name that fits into an address.
func shortDir(t *testing.T, run string) string {
	t.Helper()
	d, err := os.MkdirTemp("", "ar")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	if err := os.Symlink(filepath.Join(run, "control"), filepath.Join(d, "c")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(d, "c")
}
