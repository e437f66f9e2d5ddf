// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// runner starts commands and waits for them.
type runner struct{ supervisor link.Supervisor }

// ended is a command that came to its end by itself.
type ended struct {
	output []byte
	code   int
	why    string // what agentrun said; "" if it just exited
}

// start starts a command, feeds it and reads what it prints, at most limit bytes. When it returns nothing is
// left of it.
func (r runner) start(ctx context.Context, entry string, input []byte, limit int64) (ended, *gate.Error) {
	if r.supervisor == nil {
		return ended{}, tools.Refuse(gate.CodeUnavailable, nil, "", "commands can't be run here")
	}
	p, err := r.supervisor.Execute(ctx, entry)
	if err != nil || p == nil {
		return ended{}, interrupted(ctx, err, gate.CodeUnavailable, "the command could not be started")
	}
	// Closing ends the reads and writes below: the kernel's with the process, and by deadline those whose other end
	// somebody else might still hold.
	stop := context.AfterFunc(ctx, func() {
		_ = p.Stdout().SetReadDeadline(time.Unix(1, 0)) // an error means it isn't a pipe, and ends with the process
		_ = p.Close()                                   // closed again below, whose error counts
	})
	e, bad := r.converse(ctx, p, input, limit)
	stop()
	if err := p.Close(); err != nil && bad == nil {
		bad = tools.Refuse(gate.CodeToolFailed, err, "try again", "the command's sandbox could not be removed")
	}
	return e, bad
}

func (r runner) converse(ctx context.Context, p link.Process, input []byte, limit int64) (ended, *gate.Error) {
	go feed(p.Stdin(), input)
	out, err := io.ReadAll(io.LimitReader(p.Stdout(), limit+1))
	switch {
	case ctx.Err() != nil || err != nil:
		return ended{}, interrupted(ctx, err, gate.CodeToolFailed, "the command's output could not be read")
	case int64(len(out)) > limit:
		return ended{}, tools.Refuse(gate.CodeTooLarge, nil, "print less",
			"the command printed more than %d bytes", limit)
	}
	e := ended{output: out}
	e.code, e.why, err = p.Wait(ctx)
	if err != nil {
		return ended{}, interrupted(ctx, err, gate.CodeToolFailed, "the command's end is not known")
	}
	return e, nil
}

// feed ends with the process at the latest: its end of the pipe is closed then. A program need not read its input, so an
// error is none.
func feed(stdin *os.File, input []byte) {
	_, _ = stdin.Write(input)
	_ = stdin.Close()
}

func interrupted(ctx context.Context, err error, code rings.Code, message string) *gate.Error {
	var e *gate.Error
	switch {
	case errors.As(context.Cause(ctx), &e), errors.As(err, &e):
		return e
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return tools.Refuse(gate.CodeToolTimeout, err, "do less at once", "the command ran out of time")
	case ctx.Err() != nil:
		return tools.Refuse(gate.CodeCanceled, err, "", "the call was ended")
	}
	return tools.Refuse(code, err, "try again later", "%s", message)
}

// verdicts are what the end of a sandbox means for the call, by the words of M-6.
var verdicts = map[string]struct {
	code          rings.Code
	next, message string
}{
	"failed":  {gate.CodeUnavailable, "tell the operator", "the command could not be started"},
	"timeout": {gate.CodeToolTimeout, "do less at once", "the command ran out of time"},
	"oom":     {gate.CodeToolRestricted, "use less memory", "the command needed more memory than its sandbox has"},
	"policy": {gate.CodeToolRestricted, "do without what the sandbox forbids",
		"the sandbox ended the command for what it did"},
	"killed": {gate.CodeToolFailed, "try again", "the command was killed"},
	"":       {gate.CodeToolFailed, "try again", "the command ended in an unusual way"}, // any other word
}

// verdict is that of verdicts; nil if the program just exited.
func (e ended) verdict() *gate.Error {
	why, _, _ := strings.Cut(e.why, ":")
	if slices.Contains([]string{"", "exited", "signaled"}, why) {
		return nil
	}
	v, known := verdicts[why]
	if !known {
		v = verdicts[""]
	}
	return tools.Refuse(v.code, errors.New("sandbox ended: "+e.why), v.next, "%s", v.message)
}
