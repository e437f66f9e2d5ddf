// SPDX-License-Identifier: Apache-2.0

// Package cmdtool makes tools of commands (M-12): each call starts the operator's program in a fresh sandbox, gives it the
// arguments as JSON on its standard input, and takes what it prints as the output.
//
//	tools:
//	  wordcount:
//	    command:
//	      argv: [/usr/local/bin/wordcount]
//	      output: json
//
// code-executor is such a tool too: CodeExecutor runs an agent's own code in Python, JavaScript or sh, in ring 3.
//
// Guarantees. The gateway starts nothing itself: the supervisor does, and only what Commands named before anything of an
// agent's was read. Arguments never stand in a command line. The process is killed when the call ends, for whatever reason,
// and Call returns only after nothing of it is left. Output is bounded.
//
//	commands, err := cmdtool.Commands(name, node)          // announce to the supervisor
//	factory := cmdtool.Factory(cmdtool.Options{Supervisor: supervisor})
//
// Errors are *gate.Error: tool_timeout, too_large, tool_restricted (the sandbox ended it for what it did), tool_failed (an exit
// code that isn't 0, output that isn't what was promised), unavailable (it couldn't be started). code-executor answers with
// output and exit code, whatever the code is.
//
// What it does not protect against. What a program does within its sandbox, and what it prints: output of an agent's
// arguments is as trustworthy as they are. Programs that keep state in a workspace share it over calls.
//
// It fails closed: no supervisor, no program, an unknown language or key refuse.
package cmdtool
