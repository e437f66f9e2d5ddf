// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"slices"
	"strings"
)

func (f *finder) git(args []string) {
	sub, rest := gitCommand(args)
	f.aimAt(rest)
	f.aim("repository")
	name := "git"
	as := noFactor
	switch sub {
	case "push":
		as = verbSend
		f.add(network, "git push")
		f.way = true
		if has(rest, 'f', "force") || has(rest, 'd', "delete") || has(rest, 0, "mirror") || has(rest, 0, "prune") || slices.ContainsFunc(rest, func(a string) bool { return a[0] == '+' || a[0] == ':' }) {
			as = verbDelete
			f.act(verbSend, "push")
			f.add(force, "git push with force")
			f.operate("git", "push", "--force")
		}
		for _, a := range rest {
			if _, to, ok := strings.Cut(strings.TrimPrefix(a, "+"), ":"); ok {
				a = to
			}
			if a == "main" || a == "master" || strings.HasSuffix(a, "/main") || strings.HasSuffix(a, "/master") {
				first(&f.main, a)
			}
		}
	case "reset":
		as = verbChange
		if has(rest, 0, "hard") {
			as = verbDelete
		}
	case "clean":
		as = verbRead
		if has(rest, 'f', "force") {
			as = verbDelete
			f.add(recursive, "git clean")
		}
	case "checkout", "restore", "switch":
		as = verbChange
		if has(rest, 'f', "force") || slices.Contains(rest, "--") || slices.Contains(rest, ".") {
			as = verbDelete
		}
	case "branch", "tag", "stash", "remote", "worktree":
		as = verbWrite
		if has(rest, 'D', "delete") || has(rest, 'd', "") || slices.Contains(rest, "drop") || slices.Contains(rest, "clear") || slices.Contains(rest, "remove") {
			as = verbDelete
		}
	case "filter-branch", "filter-repo", "reflog", "gc", "update-ref", "replace":
		as = verbDelete
	case "clone", "fetch", "pull", "submodule", "ls-remote":
		as = verbFetch
		f.add(network, "git "+sub)
	case "status", "log", "diff", "show", "blame", "describe", "grep", "ls-files", "rev-parse", "shortlog":
		as = verbRead
	case "config":
		as = verbChange
		if slices.ContainsFunc(rest, func(a string) bool {
			return strings.Contains(a, "hookspath") || strings.Contains(a, "hooksPath") || strings.HasPrefix(a, "alias.")
		}) {
			f.add(persistence, "git config")
		}
	case "add", "commit", "merge", "rebase", "cherry-pick", "revert", "apply", "am", "init", "mv":
		as = verbChange
	case "rm":
		as = verbDelete
	}
	if as != noFactor {
		f.did(as, name, append([]string{sub}, rest...))
		f.operate(append([]string{name, sub}, rest[:min(len(rest), 32)]...)...)
	}
}

// gitCommand passes over git's own options: -C DIR, -c name=value, --git-dir=….
func gitCommand(args []string) (string, []string) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-C" || a == "-c" || a == "--git-dir" || a == "--work-tree":
			i++
			for i+2 < len(args) && args[i+1] == "=" {
				i += 2
			}
		case a[0] == '-':
		default:
			return strings.ToLower(a), args[i+1:]
		}
	}
	return "", nil
}

// packages judges what a package manager is told.
func (f *finder) packages(name string, args []string) bool {
	sub := subcommand(args)
	rest := args[min(len(args), slices.IndexFunc(args, func(a string) bool { return strings.EqualFold(a, sub) })+1):]
	var as factor
	switch sub {
	case "install", "i", "add", "ci", "get", "upgrade", "update", "dlx", "create", "full-upgrade", "dist-upgrade", "require", "sync", "x", "reinstall":
		if name == "go" && sub != "install" && sub != "get" {
			return false
		}
		as = verbInstall
	case "remove", "uninstall", "rm", "purge", "autoremove", "un", "erase":
		as = verbDelete
	case "publish", "push", "upload", "deploy":
		as = verbSend
		f.add(network, name+" "+sub)
	case "unpublish", "yank", "deprecate":
		as = verbDelete
	case "run", "start", "exec", "run-script":
		as = verbRun
	case "test", "build", "lint", "check", "vet", "fmt", "audit", "clippy", "bench", "generate", "t":
		as = verbTest
	case "list", "ls", "show", "search", "outdated", "view", "info", "freeze", "env", "version", "doc", "tree":
		as = verbRead
	case "":
		switch {
		case name == "yarn" || name == "bundle":
			as = verbInstall
		case (name == "pacman" || name == "rpm" || name == "dpkg") && len(args) > 0:
			as = verbInstall
		default:
			return false
		}
	default:
		if (name == "pacman" || name == "rpm" || name == "dpkg") && has(args, 'i', "") || has(args, 'S', "") || has(args, 'U', "") {
			as = verbInstall
			break
		}
		return false
	}
	if sub == "" {
		f.did(as, name, rest) // pacman -Syu: there is no word that says it
	} else {
		f.did(as, name, append([]string{sub}, rest...))
	}
	f.aimAt(rest)
	f.aim(name)
	return true
}

func (f *finder) containers(name string, args []string) {
	for _, a := range args {
		switch strings.ToLower(a) {
		case "run", "exec", "start", "up", "create":
			f.did(verbRun, name, args)
		case "rm", "rmi", "prune", "down":
			f.did(verbDelete, name, args)
		case "stop", "kill", "restart", "pause":
			f.did(verbStop, name, args)
		case "push", "login":
			f.did(verbSend, name, args)
			f.add(network, name+" push")
			f.way = true
		case "pull":
			f.did(verbFetch, name, args)
			f.add(network, name+" pull")
		case "build":
			f.did(verbTest, name, args)
		case "ps", "logs", "images", "inspect", "stats", "version":
			f.did(verbRead, name, args)
		case "volume", "-v", "--volumes":
			first(&f.store, "volume")
		case "--privileged", "--pid", "--network", "--cap-add":
			if a != "--network" {
				f.add(privilege, a)
			}
		}
		if from, to, ok := strings.Cut(a, ":"); ok && to != "" && strings.HasPrefix(from, "/") {
			f.place(from, true, false)
			if from == "/" {
				f.add(targetRoot, a)
			}
		}
	}
	f.aimAt(args[min(1, len(args)):])
}

func (f *finder) cluster(name string, args []string) {
	f.add(network, name)
	for i, a := range args {
		switch strings.ToLower(a) {
		case "delete", "uninstall":
			f.did(verbDelete, name, args)
		case "apply", "create", "patch", "edit", "scale", "rollout", "upgrade", "install", "replace", "set", "rollback", "expose", "annotate", "label":
			f.did(verbDeploy, name, args)
		case "drain", "cordon", "evict", "taint":
			f.did(verbStop, name, args)
		case "get", "describe", "logs", "top", "list", "status", "explain":
			if i == 0 {
				f.did(verbRead, name, args)
			}
		case "exec", "run", "attach", "debug", "port-forward", "cp":
			f.did(verbRun, name, args)
		case "namespace", "ns", "namespaces", "node", "nodes", "pv", "pvc", "crd", "persistentvolumeclaim":
			first(&f.store, a)
		case "secret", "secrets":
			f.add(credentialWord, a)
			f.sensitive = true
		}
	}
	f.aimAt(args[min(1, len(args)):])
	f.aim(name)
}

func (f *finder) infrastructure(name string, args []string) {
	f.aim("infrastructure")
	for _, a := range args {
		switch strings.ToLower(a) {
		case "destroy", "down", "-destroy", "--destroy":
			f.did(verbDestroy, name, args)
			first(&f.store, "infrastructure")
		case "apply", "up", "deploy", "import", "taint", "refresh":
			f.did(verbDeploy, name, args)
		case "plan", "show", "validate", "preview", "diff", "output", "fmt":
			f.did(verbRead, name, args)
		case "-auto-approve", "--auto-approve", "-y", "--yes":
			f.add(force, a)
		}
	}
}
