// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"path"
	"slices"
	"strings"
)

// flow is what earlier commands of a hint did that a later one makes worse.
type flow struct {
	loaded bool // something was downloaded or decoded
	shell  bool // a shell or an interpreter was named
}

// segments judges the commands between separators, from words alone: it must see what the parser refuses, as
// half a command in a sentence does.
//
// Three things of the last separator decide how the next words are read. After a redirection the first word
// is a file and no command. After a pipe a bare shell runs what it is fed. After an opened substitution the
// words are an argument of the command before, which gets their output. Brackets of prose aren't separators
// of commands unless a dollar stands before them; they end a segment all the same, so that (rm -rf /) is read
// from its rm.
func (f *finder) segments(tokens []token) {
	var words []string
	var now flow
	piped := false  // it was a pipe
	file := false   // or a redirection, and a file's name comes first
	opened := false // the last separator opened a substitution, whose output the command before gets
	end := func() {
		if file && len(words) > 0 {
			words = words[1:]
		}
		f.segment(words, &now, opened, piped)
		words = words[:0]
	}
	for i, t := range tokens {
		if !t.sep {
			words = append(words, t.text)
			continue
		}
		if t.text != "(" && t.text != ")" || i > 0 && strings.HasSuffix(tokens[i-1].text, "$") {
			f.chained = true
		}
		end()
		file = t.text == "<" || t.text == ">"
		piped = t.text == "|"
		opened = t.text == "(" || t.text == "`" || t.text == "<"
	}
	end()
}

// segment judges one command with what came before it. A download that is run is told by three signs: a shell
// after something that was downloaded (curl … | sh), a download within what a shell is given (sh -c "$(curl
// …)"), and prose that says both. The state is carried on whether or not the two are joined by a pipe: a file
// between them does the same.
func (f *finder) segment(words []string, now *flow, opened, piped bool) {
	if len(words) == 0 {
		return
	}
	loads, shell := loader(words), interpreter(words)
	if shell && now.loaded || loads && opened && now.shell || f.acted[verbFetch] && f.found[network] && shell {
		f.add(downloadAndRun, strings.Join(words, " "))
		f.act(verbRun, "run")
	}
	if shell && piped && bare(words) {
		f.add(dynamicCode, "text is piped into "+words[0])
		f.act(verbRun, "run")
	}
	now.loaded = now.loaded || loads
	now.shell = now.shell || shell
	f.call(words)
}

// loader tells whether a command brings text in or decodes it.
func loader(words []string) bool {
	for i, w := range words {
		switch k := lexicon().kinds[base(w)]; {
		case k&loads != 0:
			return hasArgument(words[i+1:])
		case k&decodes != 0:
			return hasOption(words[i+1:])
		}
	}
	return false
}

func hasArgument(words []string) bool {
	return len(words) > 0 && (words[0][0] == '-' || strings.ContainsAny(words[0], "./:$"))
}

func hasOption(words []string) bool {
	return len(words) > 0 && (words[0][0] == '-' || words[0] == "enc")
}

// bare tells whether an interpreter has nothing to run but its input: no file follows its name.
func bare(words []string) bool {
	for i, w := range words {
		if interpreter([]string{w}) {
			return i+1 == len(words) || !pathLike(words[i+1])
		}
	}
	return false
}

// option tells -rf and --all from a dash.
func option(a string) bool {
	return len(a) > 1 && a[0] == '-' && (letter(a[1]) || a[1] == '-' && len(a) > 2 && letter(a[2]))
}

// interpreter tells whether a command runs what it is given.
func interpreter(words []string) bool {
	for _, w := range words {
		if is(base(w), interprets) {
			return true
		}
	}
	last := words[len(words)-1]
	return strings.HasPrefix(words[0], "./") || words[0] == "source" || last == "source" || last == "."
}

// base is a command's name without folder, case and suffix.
func base(w string) string {
	if strings.ContainsAny(w, "/\\") {
		w = path.Base(strings.ReplaceAll(w, "\\", "/"))
	}
	return strings.TrimSuffix(strings.ToLower(w), ".exe")
}

// maxArgs of one command are looked at as such; what comes later has been read as prose, and is tried as
// commands of its own.
const maxArgs = 64

// call judges the words of one command. A command may stand behind others (sudo, env, xargs, find -exec) and
// behind prose, so every place is tried; further in, a name within a path is an argument unless it lies in a
// folder of programs.
//
// What can go wrong is on both sides. Tried too often, "please find the time to kill the bug" would be two
// commands: a name that is an English word too counts only behind a wrapper or before evidence. Tried too
// seldom, a wrapper that isn't known hides what it runs: that is why names that are no English words count
// anywhere.
func (f *finder) call(words []string) {
	each := false // behind xargs or parallel
	for i, w := range words {
		each = each || i > 0 && many(words[i-1])
		if w == "" || w[0] == '-' || i > 0 && strings.Contains(w, "/") && !strings.Contains(w, "bin/") && !strings.Contains(w, "/ld-") && !wrapper(words[:i]) {
			continue
		}
		name, args := base(w), words[i+1:min(len(words), i+1+maxArgs)]
		if i > 0 && is(name, english) && !evidence(args) && !wrapper(words[:i]) {
			continue
		}
		if (name == "rm" || name == "unlink" || name == "shred") && each {
			first(&f.all, "as many as are given")
		}
		f.carried(name, args)
		if i+2 < len(words) && words[i+1] == "=" {
			f.variable(strings.TrimSuffix(w, "+"), words[i+2])
		}
		if f.command(name, args) && strings.Contains(w, "bin/") && len(f.programs) < maxOperations {
			f.programs = append(f.programs, w)
		}
	}
}

// many takes the commands that run another for each thing they are given.
func many(w string) bool { return base(w) == "xargs" || base(w) == "parallel" }

// evidence that a word of prose is a command: an option or a path follows, or a word that only this command
// takes. An address is no evidence: "install https://…" is as good a sentence as a command, and the address
// counts by itself.
func evidence(args []string) bool {
	if len(args) == 0 {
		return false
	}
	if strings.Contains(args[0], "://") {
		return false
	}
	if a := args[0]; a[0] == '-' || a[0] == '/' || a[0] == '~' || strings.HasPrefix(a, "./") || strings.ContainsAny(a, "@:=") || pathLike(a) {
		return true
	}
	if slices.ContainsFunc(args[:min(len(args), 8)], option) {
		return true
	}
	return is(strings.ToLower(args[0]), evident)
}
