// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// event is the part of cmd/test2json's record that is used here.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail, instead of Package
	Test       string
	Output     string
	Key, Value string // of attr: what a test says of itself by t.Attr
	Elapsed    float64
}

// scan calls f for each line. Lines that are no event reach f with ok false: the go
// command prints some of its own errors as plain text even with -json.
func scan(in io.Reader, f func(line []byte, e event, ok bool) error) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			ok := json.Unmarshal(line, &e) == nil && e.Action != ""
			if err := f(line, e, ok); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watch copies events to file and tells out what a person wants to see meanwhile:
// one line a package, and the whole output of a test that failed.
func watch(in io.Reader, file, out io.Writer) error {
	output := map[[2]string]*strings.Builder{}
	return scan(in, func(line []byte, e event, ok bool) error {
		if !ok {
			_, err := out.Write(line)
			return err
		}
		if _, err := file.Write(line); err != nil {
			return err
		}
		key := [2]string{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			b := output[key]
			if b == nil {
				b = &strings.Builder{}
				output[key] = b
			}
			// A run-away test must not take our memory along.
			if b.Len() < 256<<10 {
				b.WriteString(e.Output)
			}
		case "pass", "skip", "fail":
			if e.Action == "fail" && output[key] != nil {
				fmt.Fprint(out, output[key])
			}
			delete(output, key)
			if e.Test == "" && e.Action != "skip" {
				fmt.Fprintf(out, "%s  %s  %.1fs\n", e.Action, e.Package, e.Elapsed)
			}
		}
		return nil
	})
}

// Marks of test/vm/suite.sh around the output of each test program.
const (
	guestBegin = "@@testtable begin " // then the package
	guestEnd   = "@@testtable end "   // then the exit code
)

// guest makes events of several test programs' output, by test2json, and watches them
// as they come: the machine is slow, and a person waits.
func guest(in io.Reader, file, out io.Writer) error {
	lines := bufio.NewReader(in)
	var program *converter
	finish := func(code int) error {
		err := program.finish(code)
		program = nil
		return err
	}
	for {
		line, err := lines.ReadString('\n')
		// A program may end without a newline; the mark is then in the middle of a line.
		if at := strings.Index(line, guestEnd); at >= 0 && program != nil {
			code, cerr := strconv.Atoi(strings.TrimSpace(line[at+len(guestEnd):]))
			if cerr != nil {
				code = 1
			}
			if err := errors.Join(program.write(line[:at]), finish(code)); err != nil {
				return err
			}
		} else if pkg, ok := strings.CutPrefix(line, guestBegin); ok {
			// A program without its end mark took the whole script along.
			if program != nil {
				if err := finish(-1); err != nil {
					return err
				}
			}
			program, err = startConverter(strings.TrimSpace(pkg), file, out)
			if err != nil {
				return err
			}
		} else if program != nil {
			if err := program.write(line); err != nil {
				return err
			}
		} else {
			fmt.Fprint(out, line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if program != nil {
		// The machine ended while the program ran.
		return finish(-1)
	}
	return nil
}

// converter is one test2json whose events are being watched.
type converter struct {
	pkg       string
	cmd       *exec.Cmd
	in        io.WriteCloser
	watched   chan error
	file, out io.Writer
}

func startConverter(pkg string, file, out io.Writer) (*converter, error) {
	cmd := exec.Command("go", "tool", "test2json", "-t", "-p", pkg)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("test2json: %w", err)
	}
	c := &converter{pkg: pkg, cmd: cmd, in: in, watched: make(chan error, 1), file: file, out: out}
	go func() { c.watched <- watch(events, file, out) }()
	return c, nil
}

func (c *converter) write(text string) error {
	_, err := io.WriteString(c.in, text)
	return err
}

// finish adds what test2json can't know. It reads "PASS" and sees no exit code: a leak
// check after the tests fails only there.
func (c *converter) finish(code int) error {
	c.in.Close()
	if err := errors.Join(<-c.watched, c.cmd.Wait()); err != nil {
		return fmt.Errorf("test2json of %s: %w", c.pkg, err)
	}
	if code == 0 {
		return nil
	}
	fmt.Fprintf(c.out, "%s: exit code %d\n", c.pkg, code)
	return json.NewEncoder(c.file).Encode(event{Action: "fail", Package: c.pkg})
}
