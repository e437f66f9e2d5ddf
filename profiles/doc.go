// SPDX-License-Identifier: Apache-2.0

// Package profiles holds what a ring allows as data: YAML files with a reason for every rule, a loader that refuses
// anything it doesn't understand, and the ranges a run's limits must lie in.
//
// Guarantees: a Profile that Load or Builtin returned with a nil error names a ring from 1 to 3, has every field set, has
// limits within the ranges asked for, is no looser than its ring (checkRing), ends in the built-in profile `base`, and so
// carries base's floor, the rules no other profile can loosen. The same files give the same value, byte for byte the same
// Digest. Nothing on the host is looked at but the profile files.
//
//	p, err := profiles.Load(profiles.Sources{Dirs: profiles.DefaultDirs(os.Getenv)}, "ring3")
//	if err != nil {
//		return err // *NotFoundError, *ShadowError or *read.InvalidError with every problem as file:line
//	}
//	p.Limits.Timeout = t
//	problems := p.Limits.Check(node.Ranges.Of(p.Ring))
//
// Rules are ordered and the first that matches decides. What no rule decides is not this package's business: the filter
// notifies the supervisor of all others: it refuses, answers ENOSYS to unknown numbers and kills for foreign architectures.
//
// What it does not protect against: a profile's author. Whoever writes a profile can allow any call that isn't in the
// floor. Paths of tools and of /etc entries are checked as text only; the launch opens them without following links it
// doesn't trust. A sandbox isn't built here: a field without a mechanism behind it would be a silent no-op, so the plan
// lists what it applies.
//
// It fails closed. The zero Profile, Action, Mode and Limits are invalid, not permissive. A broken profile is never used
// in part. The built-ins are compiled in (builtin_gen.go, made from the YAML by go generate) because parsing the YAML
// takes milliseconds at each start; a test holds the two in step.
package profiles

//go:generate go test . -run ^TestGenerated$ -update
