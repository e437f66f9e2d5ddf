// SPDX-License-Identifier: Apache-2.0

// Package runtime runs one agent in a sandbox: Spec (profile and flags) → Plan (Spec against this
// host) → a live process, watched until nothing of it is left.
//
//	plan, err := runtime.NewPlan(spec)
//	status := runtime.Run(ctx, plan, runtime.Options{RunDir: "/run/agentrun", Stdout: os.Stdout, Stderr: os.Stderr})
//
// It guarantees: nothing starts from a plan with an error; a launch that fails at any step leaves the
// host as it was and names the step (StepError); no code of the agent runs before the live process was
// compared with the plan; when Run returns, every process, mount, cgroup and namespace of the run is
// gone, or Status.Leftovers says what is not (M-1 to M-6, M-21).
//
// While it lives a run is a Live (Options.OnLive): it follows the ring that Options.Ring says, is frozen,
// changed and killed. A ring that falls is taken from it whole, or the run ends (M-22, docs/live-ring.md).
//
// Errors: ErrEnded is what a Live gives once the run is over or being killed; *InvalidSpec lists every bad
// field; *CommandError is a command that can't be found (127) or executed (126); *StepError is a launch that
// failed (125). All unwrap to their cause.
//
// It does not protect against the kernel, host root, or what the operator chose to show the agent
// (SECURITY.md). Despite the name it is not Go's own runtime; that one is imported as goruntime.
package runtime
