// SPDX-License-Identifier: Apache-2.0

// Command testtable turns the event streams of go test into what a person and CI
// need to know of a run that was spread over several machines.
//
//	testtable watch FILE    < events         keeps the events, prints failures as they come
//	testtable guest FILE    < output         the same for test/vm/suite.sh, which has no go tool
//	testtable reap COMMAND…                  runs it, and takes leave of the dead that its descendants leave behind
//	testtable again < events                 what to try a second time: by line, a package and a pattern
//	testtable report [-must-run] [-step NAME]… host=FILE… vm=FILE… again:host=FILE…
//	testtable attacks [-tests] [-commit NAME] host=FILE… vm=FILE…    writes docs/attacks.md
//
// report merges the platforms: a test is skipped only if it was skipped wherever
// it was met, and its reasons are shown. With -must-run such a test is a failure:
// a suite that is green because nothing ran is the failure this program is for.
// A test that passes at a second try (again:) has passed, and is named before the last line.
// A stream that stops in the middle, or holds no event at all, is a failure too.
// The last line is "N passed, N failed, N skipped".
//
// It does not judge whether a test tests anything, and knows nothing of a
// platform that nobody named.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// errFailed ends the program with 1 after everything has been printed already.
var errFailed = errors.New("tests failed")

func main() {
	err := run(os.Args[1:], os.Stdin, os.Stdout)
	var code exited
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case err == nil:
	case errors.Is(err, errFailed):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "testtable:", err)
		os.Exit(2)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("want watch, guest, reap, again, report or attacks")
	}
	switch args[0] {
	case "watch", "guest":
		if len(args) != 2 {
			return fmt.Errorf("%s wants one file", args[0])
		}
		f, err := os.Create(args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		if args[0] == "guest" {
			return guest(in, f, out)
		}
		return watch(in, f, out)
	case "reap":
		return reap(args[1:])
	case "again":
		return again(in, out)
	case "report":
		return reportCommand(args[1:], out)
	case "attacks":
		return attacksCommand(args[1:], out)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func reportCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	mustRun := flags.Bool("must-run", false, "a test that was skipped on every platform is a failure")
	var steps []string
	flags.Func("step", "name of a step outside go test that went wrong", func(name string) error {
		steps = append(steps, name)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	t := newTable()
	for _, arg := range flags.Args() {
		platform, file, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want PLATFORM=FILE", arg)
		}
		f, err := os.Open(file)
		if err != nil {
			// The step that should have written it did not get that far.
			steps = append(steps, fmt.Sprintf("%s results (%v)", platform, err))
			continue
		}
		platform, read := t.reader(platform)
		err = read(platform, f)
		f.Close()
		if err != nil {
			steps = append(steps, fmt.Sprintf("%s results in %s (%v)", platform, file, err))
		}
	}
	return t.print(out, *mustRun, steps)
}
