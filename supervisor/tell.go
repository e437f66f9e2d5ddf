// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"agentrun/hypervisor"
	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	"agentrun/internal/hostcaps"
	"agentrun/internal/read"
	"agentrun/internal/shown"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/witness"
)

// Report prints what happened and one hint line, and returns the exit code (docs/exit-codes.md).
func Report(w io.Writer, err error) int {
	if code := ending.Report(w, err, Hint); code != runtime.ExitFailed {
		return code
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if cmd, ok := errors.AsType[*runtime.CommandError](err); ok {
		return cmd.ExitCode()
	}
	return runtime.ExitFailed
}

// Tell prints what happened, which may hold names that nobody of ours chose: files of a workspace, arguments,
// what an agent put into a folder. A terminal would obey their control characters, and a line end would forge
// our own next line.
func Tell(w io.Writer, what, hint string) {
	fmt.Fprintf(w, "agentrun: %s\n", shown.Line(what))
	if hint != "" {
		fmt.Fprintf(w, "%s %s\n", shown.Paint(w, shown.Cyan, "hint:"), shown.Line(hint))
	}
}

// Hint returns the way out of an error; empty: none is known.
func Hint(err error) string {
	if h, ok := errors.AsType[*hinted.Error](err); ok {
		return h.Hint
	}
	if c, ok := errors.AsType[*runtime.CommandError](err); ok {
		return c.Hint
	}
	if d, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		return d.Hint
	}
	if h := WitnessHint(err); h != "" {
		return h
	}
	if m, ok := errors.AsType[*runtime.MissingError](err); ok {
		if m.Needed {
			return "agentrun doctor says how to get it"
		}
		return "agentrun doctor says how to get it; --best-effort runs without, and says so"
	}
	if p, ok := errors.AsType[*profiles.NotFoundError](err); ok {
		var names []string
		for _, i := range profiles.List(profiles.Sources{Dirs: p.Searched}) {
			names = append(names, i.Name)
		}
		if near := read.Nearest(p.Name, names); near != "" {
			return "did you mean " + near + "? agentrun profile list shows the names"
		}
		return "agentrun profile list shows the names"
	}
	if errors.Is(err, fs.ErrPermission) && hostcaps.Root.Check() != nil {
		return "it isn't this user's: start agentrun as root, or name folders of your own with --state-dir and --run-dir"
	}
	return ""
}

// WitnessHint is the way out of a refused attestation.
func WitnessHint(err error) string {
	switch {
	case errors.Is(err, witness.ErrUnknownKey):
		return "agentrun operator list shows whom this host trusts; the operator's line belongs into that file"
	case errors.Is(err, witness.ErrExpired), errors.Is(err, witness.ErrNonceUsed):
		return "each is good once and for minutes; have a new one signed: agentrun operator sign"
	case errors.Is(err, witness.ErrTooFar):
		return "at most " + shown.Duration(witness.MaxTTL) + " ahead; is the clock right here and where it was signed?"
	case errors.Is(err, witness.ErrAction), errors.Is(err, witness.ErrSubject):
		return "an attestation is for what it names and nothing else; agentrun operator verify shows it"
	case errors.Is(err, witness.ErrMalformed), errors.Is(err, witness.ErrSignature):
		return "copy the whole word that agentrun operator sign printed, without any change"
	}
	return ""
}
