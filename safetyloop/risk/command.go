// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"cmp"
	"slices"
	"strings"

	"agentrun/internal/fold"
)

// did notes what a command does, under its name. Only an action that is stronger than what was found before,
// or as strong where no command has named its target, gives the operation and the target: of "ls; rm -rf /"
// it is rm.
func (f *finder) did(as factor, name string, args []string) {
	stronger := f.verb == "" || catalogue[as].Points > catalogue[f.verbAs].Points || catalogue[as].Points == catalogue[f.verbAs].Points && f.aimed == ""
	f.act(as, name)
	if !stronger {
		return
	}
	f.operation = name
	sub := subcommand(args)
	if !is(name, multi) {
		sub = ""
	}
	if sub != "" {
		f.operation += " " + sub
	}
	for _, a := range args {
		if a[0] != '-' && a != "=" && !strings.EqualFold(a, sub) && !filler(strings.ToLower(a)) {
			f.aimed = fold.String(a)
			return
		}
	}
}

// subcommand is the first argument that is no option.
func subcommand(args []string) string {
	for _, a := range args {
		if a[0] != '-' {
			return strings.ToLower(a)
		}
	}
	return ""
}

// options of a command, short ones by letter.
func has(args []string, short byte, long string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if strings.HasPrefix(a, "--") {
			if long != "" && strings.HasPrefix(strings.ToLower(a), "--"+long) {
				return true
			}
		} else if a[0] == '-' && short != 0 && strings.IndexByte(a, short) > 0 {
			return true
		}
	}
	return false
}

// touch notes the paths among a command's arguments. A relative name behind cd is noted twice, in that folder
// and as it stands: cd may have failed, or prose was taken for it. A star is everything, even where it is no
// path.
func (f *finder) touch(args []string, changes bool) {
	for _, a := range args {
		if f.folder != "" && a != "" && a[0] != '-' && a[0] != '/' && a[0] != '~' && !strings.Contains(a, "://") && (changes || strings.HasPrefix(a, "..")) {
			f.place(strings.TrimSuffix(f.folder, "/")+"/"+a, changes, false)
		}
		if a == "*" || a == "./*" || a == "." && changes {
			first(&f.all, a)
			f.aim(a)
			continue
		}
		a = strings.TrimPrefix(a, "@")
		if a != "" && a[0] != '-' && (pathLike(a) || strings.ContainsAny(a, "/*")) && !strings.Contains(a, "://") {
			f.place(a, changes, false)
			if changes && strings.HasSuffix(a, "/*") {
				first(&f.all, a)
			}
		}
	}
}

// command judges one command by its row of commands.tsv. A name that has none says nothing: its words have
// been read as prose.
//
// It is asked for every word that may be a command, with whatever follows: args may be empty, begin with
// options, or be the rest of a sentence, and no step may count on one being there. (yarn and bundle without
// arguments, and pacman with options alone, have made it panic.) The row's verb comes before its steps, so
// that a step which finds worse replaces it.
func (f *finder) command(name string, args []string) bool {
	row := lexicon().commands[name]
	if row == nil && (strings.HasPrefix(name, "mkfs.") || strings.HasPrefix(name, "newfs")) {
		row = lexicon().commands["mkfs"]
	}
	if row == nil || !only(row.only, args) {
		return false
	}
	if row.as != noFactor {
		f.did(row.as, name, args)
	}
	for _, s := range row.steps {
		if !f.do(s, name, args, "") {
			return false
		}
	}
	f.operate(append([]string{name}, args[:min(len(args), 32)]...)...)
	return true
}

// only tells a command from the word by its arguments.
func only(what string, args []string) bool {
	switch what {
	case "":
		return true
	case "su":
		return evidence(args) || len(args) == 1
	case "now":
		return len(args) > 0 && (args[0] == "now" || args[0][0] == '-')
	case "net":
		return subcommand(args) == "user" || subcommand(args) == "localgroup"
	case "evidence":
		return evidence(args)
	case "arguments":
		return len(args) > 0
	}
	return false
}

// given tells whether one of a list's arguments is there: -f alone or among other letters, --force and what
// begins so, any other word as it stands, or up to a star.
func given(args []string, list string) bool {
	for _, w := range strings.Fields(list) {
		begins, star := strings.CutSuffix(w, "*")
		found := false
		switch {
		case star:
			found = slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, begins) })
		case len(w) > 2 && strings.HasPrefix(w, "--"):
			found = has(args, 0, w[2:])
		case len(w) == 2 && w[0] == '-' && w[1] != '-':
			found = has(args, w[1], "")
		default:
			found = slices.Contains(args, w)
		}
		if found {
			return true
		}
	}
	return false
}

// do is one step of a row; word is the argument that the row is about, if it is about one. False: this is no
// such command after all.
func (f *finder) do(s step, name string, args []string, word string) bool {
	switch s.what {
	case "by":
		return f.by(s.of, name, args)
	case "each":
		f.each(s.of, name, args)
	case "changes", "reads":
		f.touch(args, s.what == "changes")
	case "archives":
		f.touch(args, has(args, 'x', "extract"))
	case "aims":
		f.aimAt(args)
	case "rest":
		f.aimAt(args[min(1, len(args)):])
	case "others":
		if i := slices.IndexFunc(args, func(a string) bool { return a[0] != '-' && told(s.of, a) == nil }); i >= 0 {
			f.aim(args[i])
		}
	case "self":
		f.aim(name)
	case "target":
		f.aim(s.of)
	case "store":
		first(&f.store, cmp.Or(s.of, word))
	case "hosts":
		f.hosts(name, args)
	case "way":
		f.way = true
	case "sensitive":
		f.sensitive = true
	default:
		return f.factor(s.what, name, word) || f.doing(s.what, name, args)
	}
	return true
}

// factor is a step that adds one. Its detail is the argument, or the command.
func (f *finder) factor(what, name, word string) bool {
	switch what {
	case "network":
		f.add(network, strings.TrimSpace(name+" "+word))
	case "persistence":
		f.add(persistence, name+" "+word)
	case "privilege":
		f.add(privilege, cmp.Or(word, name))
	case "force":
		f.add(force, word)
	case "secret":
		f.add(credentialWord, word)
		f.sensitive = true
	default:
		return false
	}
	return true
}

// doing is what few commands do.
func (f *finder) doing(what, name string, args []string) bool {
	switch what {
	case "asks":
		f.act(verbRead, name)
	case "mounts":
		f.mounts(args)
	case "hooks":
		if given(args, "alias.*") || slices.ContainsFunc(args, func(a string) bool {
			return strings.Contains(a, "hookspath") || strings.Contains(a, "hooksPath")
		}) {
			f.add(persistence, "git config")
		}
	case "null": // mv to nowhere
		if slices.Contains(args, "/dev/null") {
			f.did(verbDelete, name, args)
		}
	case "copies":
		if name != "rsync" || slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, ":") }) {
			f.hosts(name, args)
		}
	case "serves":
		if has(args, 'e', "exec") || has(args, 'c', "sh-exec") || slices.ContainsFunc(args, func(a string) bool {
			l := strings.ToLower(a)
			return strings.HasPrefix(l, "exec:") || strings.HasPrefix(l, "system:")
		}) {
			f.add(remoteShell, name)
		}
	case "forwards":
		if has(args, 'R', "") {
			f.add(remoteShell, "ssh -R")
		}
	case "signals":
		if slices.Contains(args, "-9") || slices.Contains(args, "-KILL") {
			f.add(force, name+" -9")
		}
		if slices.Contains(args, "-1") && name == "kill" {
			first(&f.all, "kill -1")
		}
	case "firewall":
		off := slices.ContainsFunc(args, func(a string) bool { return a == "disable" || a == "flush" || a == "0" })
		if off || has(args, 'F', "flush") || name == "aa-disable" || name == "aa-teardown" {
			f.add(securityOff, name)
		}
	default:
		return false
	}
	return true
}

// by judges a command whose arguments say what it does.
func (f *finder) by(whom, name string, args []string) bool {
	switch whom {
	case "folder":
		return f.enter(args)
	case "remove":
		f.remove(name, args)
	case "find":
		f.find(name, args)
	case "dd":
		f.dd(name, args)
	case "mode":
		return f.chmod(name, args)
	case "script":
		f.script(name, args)
	case "web":
		f.web(name, args)
	case "schedule":
		f.schedule(name, args)
	case "environment":
		return f.environment(name, args)
	case "history":
		f.history(name, args)
	case "git":
		f.git(name, args)
	case "packages":
		return f.packages(name, args)
	default:
		return false
	}
	return true
}

// enter notes the folder that relative names are in from now on; it is no action. Whether it is there isn't
// known, so names are judged both within it and without.
func (f *finder) enter(args []string) bool {
	if len(args) == 0 {
		f.folder = "~"
	} else if pathLike(args[0]) {
		f.folder = args[0]
	}
	return false
}

func (f *finder) remove(name string, args []string) {
	f.touch(args, true)
	if has(args, 'r', "recursive") || has(args, 'R', "") {
		f.add(recursive, name+" -r")
		if has(args, 'f', "force") {
			f.operate(append([]string{"rm", "-rf"}, slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a[0] == '-' })...)...)
		}
	}
	f.aimAt(args)
}

// find looks, and -delete or -exec make of it what they do. What -exec runs is tried as a command of its own,
// by call; here it only counts that it is done to as many as are found.
func (f *finder) find(name string, args []string) {
	f.touch(args, slices.Contains(args, "-delete"))
	if slices.Contains(args, "-delete") {
		f.did(verbDelete, name, args)
		f.add(recursive, "find -delete")
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-exec") || strings.HasPrefix(a, "-ok") }) {
		f.add(recursive, "find -exec")
		first(&f.all, "find -exec")
	}
}

// dd writes to what of= names, and prose may have cut that at its equals sign. A whole device is destroyed by
// it, whatever is written.
func (f *finder) dd(name string, args []string) {
	for i, a := range args {
		to, ok := strings.CutPrefix(a, "of=")
		if a == "of" && i+2 < len(args) && args[i+1] == "=" {
			to, ok = args[i+2], true
		}
		if !ok {
			continue
		}
		f.place(to, true, false)
		if of, ok := strings.CutPrefix(to, "/dev/"); ok && disk(of) {
			f.did(verbDestroy, name, args)
		}
	}
}

// chmod judges who may do what from now on. The first argument is the mode and no path. Modes that only the
// owner gains by are a change like any other; everything else opens something, since what a mode means to
// others can't be told from the command alone. A bit that runs a file as its owner is a privilege.
func (f *finder) chmod(name string, args []string) bool {
	if len(args) == 0 {
		return false
	}
	as := verbAccess
	if name == "chmod" && is(args[0], mode) {
		as = verbChange
	}
	f.did(as, name, args[1:])
	f.touch(args, true)
	f.aimAt(args[1:])
	if has(args, 'R', "recursive") || has(args, 'r', "") {
		f.add(recursive, name+" -R")
	}
	if strings.Contains(args[0], "+s") || strings.HasPrefix(args[0], "4") && len(args[0]) == 4 {
		f.add(privilege, name+" "+args[0])
	}
	return true
}

func (f *finder) script(name string, args []string) {
	as := verbRead
	if has(args, 'i', "in-place") {
		as = verbChange
	} else if name == "perl" {
		as = verbRun
	}
	f.did(as, name, args)
	f.touch(args, as == verbChange)
}

func (f *finder) aimAt(args []string) {
	for _, a := range args {
		if a[0] != '-' && a != "=" {
			f.aim(a)
			return
		}
	}
}

func (f *finder) hosts(name string, args []string) {
	f.way = true
	f.add(network, name)
	f.aimAt(args)
}

// web judges a command that makes requests, by method and body. Without either it fetches; with a body it
// sends, whatever method the server would take it for. An option may stand before the address or behind it,
// so the method is looked for among all arguments, and only the address is the target. A request to this
// machine is no way out.
func (f *finder) web(name string, args []string) {
	all := args
	if i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "://") }); i >= 0 {
		args = args[i : i+1]
	}
	f.did(verbFetch, name, args)
	f.touch(all, false)
	f.aimAt(args)
	if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "://") && local(a) }) {
		f.add(network, name)
		f.way = true
	}
	method := ""
	for i, a := range all {
		switch {
		case (a == "-X" || a == "-x" || strings.EqualFold(a, "--request") || strings.EqualFold(a, "--method")) && i+1 < len(all):
			method = strings.ToUpper(all[i+1])
			if method == "=" && i+2 < len(all) {
				method = strings.ToUpper(all[i+2])
			}
		case strings.HasPrefix(a, "-X") && len(a) > 2:
			method = strings.ToUpper(a[2:])
		case a == "POST" || a == "PUT" || a == "PATCH" || a == "DELETE":
			method = a
		case (a == "-o" || a == "-O" || a == "--output") && i+1 < len(all) && pathLike(all[i+1]):
			f.place(all[i+1], true, false)
		}
	}
	switch {
	case method == "DELETE":
		f.did(verbDelete, name, args)
	case method == "POST", method == "PUT", method == "PATCH", body(name, all):
		f.did(verbSend, name, args)
	}
}

// body tells whether a request has one. Some clients take a method from it, others send it beside one; either
// way it leaves.
func body(name string, args []string) bool {
	if name == "curl" && (has(args, 'd', "data") || has(args, 'F', "form") || has(args, 'T', "upload") || has(args, 0, "json")) {
		return true
	}
	return has(args, 0, "post-data") || has(args, 0, "post-file") || has(args, 0, "body-") || slices.Contains(args, "-InFile")
}

// schedule only looks with -l. Anything else arranges to run later, a table that is read from a file as well.
func (f *finder) schedule(name string, args []string) {
	if slices.Contains(args, "-l") {
		f.did(verbRead, name, args)
		return
	}
	f.did(verbChange, name, args)
	f.add(persistence, name)
	if has(args, 'r', "") {
		f.did(verbDelete, name, args)
	}
	f.aim(name)
}

// environment: env with an argument runs that; the others then set something.
func (f *finder) environment(name string, args []string) bool {
	if len(args) > 0 && name != "printenv" {
		return name == "env"
	}
	f.did(verbRead, name, args)
	f.add(credentialWord, "the whole environment")
	f.aim("environment")
	f.sensitive = true
	return true
}

func (f *finder) history(name string, args []string) {
	if has(args, 'c', "") || has(args, 'w', "") {
		f.did(verbDelete, name, args)
		f.add(securityOff, "history -c")
		f.aim("history")
	}
}
