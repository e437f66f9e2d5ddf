// SPDX-License-Identifier: Apache-2.0

// Package runlog keeps one log for each run, ID.jsonl in a folder of the state directory, and takes it away again in time
// (M-18, M-20).
//
// Guarantees. A log is a file of its own, 0600, made new. Every message, name and value in it went through the mask.
// Lines and files are bounded; the line that says how the run ended always fits. Sweep deletes what is older than the
// policy says, errors later than the rest, nothing that somebody writes at the moment, and nothing that isn't a log of
// this program; it follows no symlink. Any number of processes may log and sweep at the same time; what keeps them apart
// is a lock on each file, which the kernel releases when its holder dies.
//
//	log, err := runlog.Create(dir, runID, runlog.Options{})
//	logger := slog.New(log.Handler())
//	...
//	err = log.Finish(runlog.Succeeded)
//	deleted, err := runlog.Thin(dir, runID, runlog.Policy{Sample: &share})
//	swept, err := runlog.Sweep(dir, runlog.Policy{}, time.Now())
//
// A run that ended well says so in the last line of its log. Every other log, also one whose writer was killed, is that of
// an error, and kept longer. Of those that ended well only a share is kept at all (Thin).
//
// Errors. Create's mean that there is no log; the caller decides whether to run without. A write that fails doesn't stop
// the run: Finish gives it. Sweep goes on past a file it can't delete and gives all errors.
//
// What it does not protect against. Deleted is: emptied, unlinked, and both synced. Blocks of the disk keep what was
// written until something else takes them: a journal, a copy-on-write file system, snapshots, backups and the spare blocks
// of flash may have it for long. Who needs more puts the folder on an encrypted volume, or on tmpfs. Retention goes by the
// machine's clock: one that jumps ahead deletes early. Root can read and change every log; audit is for that.
//
// It fails towards deleting: a log from the future ages from now on.
package runlog
