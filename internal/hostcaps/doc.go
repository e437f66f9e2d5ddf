// SPDX-License-Identifier: Apache-2.0

// Package hostcaps answers one question: what can this kernel, and this
// process on it, really do? The launch, `agentrun doctor` and the tests all
// ask it here, so that they cannot disagree.
//
// A Probe tries the feature itself, not a version number, wherever the kernel
// gives an answer without lasting effect. Probes that the launch uses
// (marked "cheap" in their comment) start no process and take under 50 µs.
//
//	if err := hostcaps.NewMountAPI.Check(); errors.Is(err, hostcaps.ErrUnsupported) {
//		return fmt.Errorf("build root view: %w", err)
//	}
//	report := hostcaps.NewReport(workspace)
//	report.WriteText(os.Stdout)
//
// Check returns nil (the feature works), an error that Is ErrUnsupported (it
// does not, and asking again will not help), or one that Is ErrInconclusive
// (something stood in the way of finding out: a permission, a lack of memory).
// Only the first two are remembered. An inconclusive answer is not a "no" and
// certainly not a "yes": callers that need the feature must refuse on it.
//
// Despite its name the package protects nothing. A feature can vanish between
// probe and use (a cgroup unmounted, a sysctl written), and a kernel may have
// it with a bug; whoever uses a feature still checks its own errors.
package hostcaps
