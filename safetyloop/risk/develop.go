// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"slices"
	"strings"
)

// git is judged by its subcommand's row. What can't be taken back there hangs on options, and those of push
// on what is pushed.
func (f *finder) git(name string, args []string) {
	args = gitCommand(args)
	sub := subcommand(args)
	rest := args[min(1, len(args)):]
	f.aimAt(rest)
	f.aim("repository")
	row := told("git", sub)
	if row == nil {
		return
	}
	as := row.as
	if given(rest, row.undone) {
		as = verbDelete
		if sub == "clean" {
			f.add(recursive, "git clean")
		}
	}
	if sub == "push" {
		f.push(rest, as == verbDelete)
	}
	for _, s := range row.steps {
		f.do(s, name, args, sub)
	}
	f.did(as, name, args)
	f.operate(append([]string{name}, args[:min(len(args), 33)]...)...)
}

// push notes what is pushed over, and to where: others build on main.
func (f *finder) push(rest []string, forced bool) {
	if forced {
		f.act(verbSend, "push")
		f.add(force, "git push with force")
		f.operate("git", "push", "--force")
	}
	for _, a := range rest {
		if _, to, ok := strings.Cut(strings.TrimPrefix(a, "+"), ":"); ok {
			a = to
		}
		if name := a[strings.LastIndexByte(a, '/')+1:]; name == "main" || name == "master" {
			first(&f.main, a)
		}
	}
}

// gitCommand passes over git's own options: -C DIR, -c name=value, --git-dir=…. What it gives begins with the
// subcommand.
func gitCommand(args []string) []string {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-C" || a == "-c" || a == "--git-dir" || a == "--work-tree":
			i++
			for i+2 < len(args) && args[i+1] == "=" {
				i += 2
			}
		case a[0] == '-':
		default:
			return args[i:]
		}
	}
	return nil
}

// packages judges what a package manager is told. Some install without a word that says so: yarn, bundle,
// pacman -Syu, dpkg -i.
func (f *finder) packages(name string, args []string) bool {
	sub := subcommand(args)
	row := told("packages", sub)
	letters := name == "pacman" || name == "rpm" || name == "dpkg" // that say what to do
	switch {
	case row != nil:
		if name == "go" && row.as == verbInstall && sub != "install" && sub != "get" {
			return false
		}
	case sub == "" && (name == "yarn" || name == "bundle" || letters && len(args) > 0),
		sub != "" && (letters && given(args, "-i") || given(args, "-S -U")):
		row = &does{as: verbInstall}
	default:
		return false
	}
	// Of no arguments, or of options alone, there is no subcommand to begin at.
	args = args[max(0, slices.IndexFunc(args, func(a string) bool { return strings.EqualFold(a, sub) })):]
	for _, s := range row.steps {
		f.do(s, name, args, sub)
	}
	f.did(row.as, name, args)
	f.aimAt(args[min(1, len(args)):])
	f.aim(name)
	return true
}

// each judges a command by every argument that has a row: kubectl -n x delete pod.
func (f *finder) each(family, name string, args []string) {
	for i, a := range args {
		row := told(family, a)
		if row == nil || row.only == "first" && i > 0 {
			continue
		}
		if row.as != noFactor {
			f.did(row.as, name, args)
		}
		for _, s := range row.steps {
			f.do(s, name, args, strings.ToLower(a))
		}
	}
}

// mounts notes the host's paths that a container gets, as -v /:/host.
func (f *finder) mounts(args []string) {
	for _, a := range args {
		if from, to, ok := strings.Cut(a, ":"); ok && to != "" && strings.HasPrefix(from, "/") {
			f.place(from, true, false)
			if from == "/" {
				f.add(targetRoot, a)
			}
		}
	}
}
