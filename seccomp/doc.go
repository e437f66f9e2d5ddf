// SPDX-License-Identifier: Apache-2.0

// Package seccomp compiles a list of rules about system calls into a BPF program, and answers the calls that the program hands
// to the supervisor.
//
// A compiled filter denies by default and decides by the first rule that matches. Callers through foreign
// architectures (i386, x32) are killed and numbers without a name get ENOSYS; by the supervisor where there is
// one, so that it knows. Each program was run against the meaning of its rules before Compile returned it.
//
//	f := seccomp.Filter{Unlisted: seccomp.Notify, Rules: []seccomp.Rule{
//		{Syscalls: []string{"read", "write", "exit_group"}, Action: seccomp.Allow, Why: "every program"},
//		{Syscalls: []string{"socket"}, Action: seccomp.Allow, Args: []seccomp.Arg{{Op: seccomp.Equal, Value: unix.AF_UNIX}}, Why: "local only"},
//	}}
//	program, err := f.CompileCached("/var/lib/agentrun/cache/seccomp", seccomp.Options{})
//	// … the pid 1 stub installs program.Bytes() and hands back the listener …
//	err = seccomp.Serve(ctx, listener, func(c seccomp.Call) seccomp.Answer {
//		recorder.Record(c, seccomp.Answer{})
//		return seccomp.Answer{} // EPERM
//	}, seccomp.ServeOptions{})
//
// Errors: Validate and Compile report every problem at once, each a *[Problem] with the rule's index and the call's name, and wrapping
// [ErrUnknownName], [ErrNotHere], [ErrUnreachable] or [ErrUnsupportedArch] where that is the cause. A cache that can't be
// used is not an error: see Program.CacheErr. Serve returns nil when the last process under the filter is gone.
//
// What it does not protect against: anything behind a pointer. A filter sees registers; paths, socket addresses, the flags of
// clone3 and the mode of openat2 are in memory that the caller can change after the check. Such calls are for mounts, Landlock
// and network namespaces to confine, or are to get ENOSYS. For the same reason [Continue] is only right for decisions made
// from registers. io_uring does its work without system calls: refuse its three calls, nothing in here sees what goes
// through a ring. And a call that is allowed is not watched.
//
// How it fails: closed. The zero values of Action, Op, Filter and Answer refuse. If the supervisor dies, the listener
// closes, and every call that asks gets ENOSYS, foreign ones too. Between installing the filter and serving the
// listener, a call that asks waits: whatever the installing process needs to hand over the listener (sendmsg, write,
// recvmsg, read) must be allowed outright or it waits for ever. WAIT_KILLABLE_RECV (Linux 5.19) should be set when
// installing; without it a signal interrupts a call that waits, which is then asked again. With it that can still
// happen until Serve has received the call, which is why Serve runs at real-time priority where it may.
//
// Despite its name the package does not install filters: that is the stub's last step before exec.
package seccomp
