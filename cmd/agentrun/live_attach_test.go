// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"agentrun/control"
)

func TestM23DetachKeys(t *testing.T) {
	for typed, want := range map[string]struct {
		passed string
		lets   bool
	}{
		"abc":                 {"abc", false},
		"ab\x10\x11cd":        {"ab", true},
		"\x10":                {"\x10", false},
		"\x10x":               {"\x10x", false},
		"\x10\x10\x11":        {"\x10", true},
		"\x11\x10":            {"\x11\x10", false},
		"a\x10b\x10c\x10\x11": {"a\x10b\x10c", true},
	} {
		for _, r := range []io.Reader{strings.NewReader(typed), iotest.OneByteReader(strings.NewReader(typed)), iotest.DataErrReader(strings.NewReader(typed))} {
			got, err := io.ReadAll(&detachKeys{r: r})
			if string(got) != want.passed || errors.Is(err, errDetached) != want.lets {
				t.Errorf("%q: got %q, %v; want %q, let go: %v", typed, got, err, want.passed, want.lets)
			}
		}
	}
}

func TestM23Attach(t *testing.T) {
	var heard string
	f := &fakeSuper{boxes: []control.Sandbox{box("one", detached)}}
	f.inside.Plan = []byte(`{"tty":false}`)
	f.attach = func(conn io.ReadWriter) error {
		c := control.NewAttachServer(conn)
		for {
			s, p, err := c.Next()
			if err != nil {
				return err
			}
			if s == control.Stdin && len(p) == 0 {
				break
			}
			heard += string(p)
		}
		if err := errors.Join(c.Send(control.Stdout, []byte("out\n")), c.Send(control.Stderr, []byte("err\n")), c.SendExit(7)); err != nil {
			return err
		}
		return nil
	}
	l, _ := liveOn(t, f)
	out, errs, code := liveDo(t, l, "hello", "attach", "one")
	if code != 7 || out != "out\n" || errs != "err\n" || heard != "hello" {
		t.Errorf("got %d, %q, %q; it heard %q", code, out, errs, heard)
	}
	f.attach = func(io.ReadWriter) error { return nil }
	if _, errs, code := liveDo(t, l, "", "attach", "one"); code != 125 || !strings.Contains(errs, "before the run did") {
		t.Errorf("got %d, %q", code, errs)
	}
	f.refuse = map[string]error{"attach": &control.Error{Code: control.CodeConflict, Message: "somebody is attached"}}
	if _, errs, code := liveDo(t, l, "", "attach", "one"); code != 125 || !strings.Contains(errs, "somebody is attached (conflict)") {
		t.Errorf("got %d, %q", code, errs)
	}
}

func TestM23AttachLetsGo(t *testing.T) {
	f := &fakeSuper{boxes: []control.Sandbox{box("one", detached)}}
	f.attach = func(conn io.ReadWriter) error {
		c := control.NewAttachServer(conn)
		for {
			if _, _, err := c.Next(); err != nil {
				return err
			}
		}
	}
	var errs strings.Builder
	r := liveRun{f.boxes[0], f}
	a := attached{doing: "attach to " + r.label(), leaves: "detached from " + r.label() + "; it goes on", connect: func(ctx context.Context, conn io.ReadWriter) error {
		return f.Attach(ctx, r.ID, conn)
	}, in: &detachKeys{r: strings.NewReader("ls\n\x10\x11")}, out: io.Discard, err: &errs}
	if err := a.serve(t.Context()); err != nil || !strings.Contains(errs.String(), "detached from run one") {
		t.Errorf("got %v, %q", err, errs.String())
	}
}
