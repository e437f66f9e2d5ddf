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

// guest makes events of several test programs' output, by test2json, and watches them.
func guest(in io.Reader, file, out io.Writer) error {
	lines := bufio.NewReader(in)
	var pkg string
	var text bytes.Buffer
	finish := func(code int) error {
		events, err := toEvents(pkg, text.Bytes(), code)
		if err != nil {
			return err
		}
		pkg = ""
		text.Reset()
		return watch(bytes.NewReader(events), file, out)
	}
	for {
		line, err := lines.ReadString('\n')
		// A program may end without a newline; the mark is then in the middle of a line.
		if at := strings.Index(line, guestEnd); at >= 0 && pkg != "" {
			text.WriteString(line[:at])
			code, cerr := strconv.Atoi(strings.TrimSpace(line[at+len(guestEnd):]))
			if cerr != nil {
				code = 1
			}
			if err := finish(code); err != nil {
				return err
			}
		} else if rest, ok := strings.CutPrefix(line, guestBegin); ok {
			pkg = strings.TrimSpace(rest)
			fmt.Fprintf(out, "...   %s\n", pkg)
		} else if pkg != "" {
			text.WriteString(line)
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
	if pkg != "" {
		// The machine ended while the program ran.
		return finish(-1)
	}
	return nil
}

// toEvents runs test2json over one program's output. test2json reads "PASS" and knows
// nothing of the exit code: a leak check after the tests fails only there.
func toEvents(pkg string, text []byte, code int) ([]byte, error) {
	cmd := exec.Command("go", "tool", "test2json", "-p", pkg)
	cmd.Stdin = bytes.NewReader(text)
	events, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("test2json: %w", err)
	}
	if code != 0 {
		// The package's own output, so that watch shows what was said outside any test.
		end, err := json.Marshal(event{Action: "output", Package: pkg, Output: fmt.Sprintf("exit code %d\n", code)})
		if err != nil {
			return nil, err
		}
		fail, err := json.Marshal(event{Action: "fail", Package: pkg})
		if err != nil {
			return nil, err
		}
		events = append(events, end...)
		events = append(events, '\n')
		events = append(events, fail...)
		events = append(events, '\n')
	}
	return events, nil
}
