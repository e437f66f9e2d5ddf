// SPDX-License-Identifier: Apache-2.0

// Package fault lets tests make a step fail where it stands, to see what a failure there leaves behind.
//
//	if err := fault.At("launch/cgroup"); err != nil { … }
//
// A point is named in the source, once. In a run that no test made, At is one load of a nil pointer.
//
// AGENTRUN_TESTONLY_FAULT in the environment at the program's start says what happens: POINT=ACTION, several divided by commas, where
// ACTION is the name of an error (EIO, ENOSPC, EMFILE, ENOMEM, EINTR), "kill" (SIGKILL to this process), "delay:TIME" or "hang"; with @N
// behind it only the Nth time. A fault can make a step fail, end or wait, never succeed. Whoever sets the variable is the operator, who
// may do all of that anyway: a program in a sandbox has no say in its supervisor's environment, a caller none in a daemon's.
//
// A setting that can't be read makes every point fail: a test that misspells must not pass.
package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Variable is what the faults are read from.
const Variable = "AGENTRUN_TESTONLY_FAULT"

// errnos are those that a kernel gives at almost any call.
var errnos = map[string]unix.Errno{"EIO": unix.EIO, "ENOSPC": unix.ENOSPC, "EMFILE": unix.EMFILE, "ENOMEM": unix.ENOMEM, "EINTR": unix.EINTR}

type rule struct {
	do    func() error
	at    int64 // 0: each time
	times atomic.Int64
}

type rules struct {
	of  map[string]*rule
	bad error
}

var active atomic.Pointer[rules]

func init() {
	if text := os.Getenv(Variable); text != "" {
		active.Store(parse(text))
	}
}

// Set puts faults in this very process, for tests; undo takes them away.
func Set(text string) (undo func()) {
	was := active.Swap(parse(text))
	return func() { active.Store(was) }
}

// At is the place of a fault. The error, if any, is the step's.
func At(point string) error {
	r := active.Load()
	if r == nil {
		return nil
	}
	return r.at(point)
}

func (r *rules) at(point string) error {
	if r.bad != nil {
		return r.bad
	}
	f := r.of[point]
	if f == nil || f.times.Add(1) != f.at && f.at != 0 {
		return nil
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", Variable, point) // so that a test knows it for reached
	if err := f.do(); err != nil {
		return fmt.Errorf("%s at %s: %w", Variable, point, err)
	}
	return nil
}

func parse(text string) *rules {
	r := &rules{of: map[string]*rule{}}
	for item := range strings.SplitSeq(text, ",") {
		point, action, ok := strings.Cut(item, "=")
		action, nth, counted := strings.Cut(action, "@")
		f := &rule{do: actionOf(action)}
		var err error
		if counted {
			f.at, err = strconv.ParseInt(nth, 10, 64)
		}
		if !ok || f.do == nil || err != nil || counted && f.at < 1 {
			return &rules{bad: fmt.Errorf("%s: %q is no POINT=ACTION", Variable, item)}
		}
		r.of[point] = f
	}
	return r
}

func actionOf(text string) func() error {
	if errno, ok := errnos[text]; ok {
		return func() error { return errno }
	}
	switch name, arg, _ := strings.Cut(text, ":"); name {
	case "kill":
		return func() error {
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		}
	case "hang":
		return func() error {
			for {
				time.Sleep(time.Hour) // and not for good: without cgo Go ends a program in which nothing can happen any more
			}
		}
	case "delay":
		if d, err := time.ParseDuration(arg); err == nil {
			return func() error { time.Sleep(d); return nil }
		}
	}
	return nil
}
