// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"slices"
	"strings"

	"agentrun/internal/fold"
)

// did notes what a command does, under its name.
func (f *finder) did(as factor, name string, args []string) {
	stronger := f.verb == "" || catalogue[as].Points > catalogue[f.verbAs].Points || catalogue[as].Points == catalogue[f.verbAs].Points && f.aimed == ""
	f.act(as, name)
	if !stronger {
		return
	}
	f.operation = name
	sub := subcommand(args)
	if !multi(name) {
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

// multi takes the commands whose first argument is the verb.
func multi(name string) bool {
	switch name {
	case "git", "npm", "pnpm", "yarn", "bun", "pip", "pip3", "docker", "podman", "kubectl", "helm", "terraform", "tofu", "apt", "apt-get", "yum", "dnf", "apk", "brew", "cargo", "go", "systemctl", "gem", "poetry", "uv", "conda", "snap", "oc":
		return true
	}
	return false
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

// touch notes the paths among a command's arguments.
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

// command judges one command by name. A name it doesn't know says nothing: its words have been read as prose.
func (f *finder) command(name string, args []string) bool {
	switch {
	case f.files(name, args), f.transfer(name, args), f.machine(name, args), f.develop(name, args), f.databases(name, args), f.inner(name, args):
		f.operate(append([]string{name}, args[:min(len(args), 32)]...)...)
		return true
	}
	return false
}

// files: commands on files.
func (f *finder) files(name string, args []string) bool {
	switch name {
	case "cd", "pushd":
		if len(args) == 0 {
			f.folder = "~"
		} else if pathLike(args[0]) {
			f.folder = args[0]
		}
		return false
	case "rm", "unlink", "rmdir", "shred", "srm", "del", "rimraf", "trash", "erase":
		f.did(verbDelete, name, args)
		f.touch(args, true)
		if has(args, 'r', "recursive") || has(args, 'R', "") {
			f.add(recursive, name+" -r")
			if has(args, 'f', "force") {
				f.operate(append([]string{"rm", "-rf"}, slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a[0] == '-' })...)...)
			}
		}
		f.aimAt(args)
	case "find", "fd":
		f.did(verbRead, name, args)
		f.touch(args, slices.Contains(args, "-delete"))
		if slices.Contains(args, "-delete") {
			f.did(verbDelete, name, args)
			f.add(recursive, "find -delete")
		}
		if i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-exec") || strings.HasPrefix(a, "-ok") }); i >= 0 {
			f.add(recursive, "find -exec")
			first(&f.all, "find -exec")
		}
	case "dd":
		f.did(verbWrite, name, args)
		for i, a := range args {
			to, ok := strings.CutPrefix(a, "of=")
			if a == "of" && i+2 < len(args) && args[i+1] == "=" {
				to, ok = args[i+2], true
			}
			if ok {
				f.place(to, true, false)
				if device(strings.TrimPrefix(to, "/dev/")) && strings.HasPrefix(to, "/dev/") {
					f.did(verbDestroy, name, args)
				}
			}
		}
	case "mkfs", "fdisk", "sfdisk", "parted", "wipefs", "sgdisk", "blkdiscard", "mkswap", "cryptsetup", "diskpart":
		f.disk(name, args)
	case "chmod", "chown", "chgrp", "setfacl", "chattr", "setcap":
		if len(args) == 0 {
			return false
		}
		as := verbAccess
		if name == "chmod" && ordinary(args[0]) {
			as = verbChange
		}
		f.did(as, name, args[1:])
		f.touch(args, true)
		f.aimAt(args[1:])
		if has(args, 'R', "recursive") || has(args, 'r', "") {
			f.add(recursive, name+" -R")
		}
		if len(args) > 0 && (strings.Contains(args[0], "+s") || strings.HasPrefix(args[0], "4") && len(args[0]) == 4) {
			f.add(privilege, name+" "+args[0])
		}
	case "mv", "cp", "ln", "install", "tee", "truncate", "touch", "mkdir", "rename", "move", "copy":
		f.did(verbChange, name, args)
		f.touch(args, true)
		f.aimAt(args)
		if name == "mv" && slices.Contains(args, "/dev/null") {
			f.did(verbDelete, name, args)
		}
	case "sed", "perl":
		as := verbRead
		if has(args, 'i', "in-place") {
			as = verbChange
		} else if name == "perl" {
			as = verbRun
		}
		f.did(as, name, args)
		f.touch(args, as == verbChange)
	case "cat", "less", "more", "head", "tail", "grep", "rg", "ls", "tree", "stat", "wc", "diff", "sort", "awk", "strings", "xxd", "od", "hexdump", "file", "du", "df", "tac", "nl", "cut", "jq", "yq":
		f.did(verbRead, name, args)
		f.touch(args, false)
		f.aimAt(args)
	case "tar", "zip", "unzip", "gzip", "7z":
		f.did(verbWrite, name, args)
		f.touch(args, has(args, 'x', "extract"))
		f.aimAt(args)
	default:
		if strings.HasPrefix(name, "mkfs.") || strings.HasPrefix(name, "newfs") {
			f.disk(name, args)
			return true
		}
		return false
	}
	return true
}

// ordinary takes modes that give nobody else a right to write, nor root's rights.
func ordinary(mode string) bool {
	switch mode {
	case "+x", "u+x", "a+x", "+r", "u+w", "644", "0644", "600", "0600", "700", "0700", "755", "0755", "640", "750", "-w", "go-rwx":
		return true
	}
	return false
}

func (f *finder) disk(name string, args []string) {
	f.did(verbDestroy, name, args)
	f.touch(args, true)
	f.aim("disk")
}

func (f *finder) aimAt(args []string) {
	for _, a := range args {
		if a[0] != '-' && a != "=" {
			f.aim(a)
			return
		}
	}
}

// transfer: commands that speak to others.
func (f *finder) transfer(name string, args []string) bool {
	switch name {
	case "curl", "wget", "http", "https", "aria2c", "xh", "iwr", "invoke-webrequest":
		f.web(name, args)
	case "nc", "ncat", "netcat", "socat", "telnet":
		f.did(verbSend, name, args)
		f.hosts(name, args)
		if has(args, 'e', "exec") || has(args, 'c', "sh-exec") || slices.ContainsFunc(args, func(a string) bool {
			l := strings.ToLower(a)
			return strings.HasPrefix(l, "exec:") || strings.HasPrefix(l, "system:")
		}) {
			f.add(remoteShell, name)
		}
	case "ssh", "mosh":
		f.did(verbRun, name, args)
		f.hosts(name, args)
		if has(args, 'R', "") {
			f.add(remoteShell, "ssh -R")
		}
	case "scp", "rsync", "sftp", "ftp", "rclone":
		f.did(verbSend, name, args)
		f.touch(args, false)
		if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, ":") }) || name != "rsync" {
			f.hosts(name, args)
		}
	case "sendmail", "mail", "mailx", "mutt", "msmtp":
		f.did(verbSend, name, args)
		f.hosts(name, args)
		f.touch(args, false)
	case "dig", "nslookup", "host", "ping":
		f.did(verbRead, name, args)
		f.hosts(name, args)
	case "nmap", "masscan", "hydra", "sqlmap", "metasploit", "msfconsole":
		f.did(verbAccess, name, args)
		f.hosts(name, args)
	default:
		return false
	}
	return true
}

func (f *finder) hosts(name string, args []string) {
	f.way = true
	f.add(network, name)
	f.aimAt(args)
}

// web judges a command that makes requests, by method and body.
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

func body(name string, args []string) bool {
	if name == "curl" && (has(args, 'd', "data") || has(args, 'F', "form") || has(args, 'T', "upload") || has(args, 0, "json")) {
		return true
	}
	return has(args, 0, "post-data") || has(args, 0, "post-file") || has(args, 0, "body-") || slices.Contains(args, "-InFile")
}

// machine: commands on the system itself.
func (f *finder) machine(name string, args []string) bool {
	switch name {
	case "sudo", "doas", "su", "pkexec", "runas", "gosu":
		if name == "su" && !evidence(args) && len(args) != 1 {
			return false
		}
		f.did(verbRun, name, args)
		f.add(privilege, name)
		f.aimAt(args)
	case "kill", "pkill", "killall", "shutdown", "reboot", "halt", "poweroff", "taskkill", "skill":
		f.did(verbStop, name, args)
		f.aimAt(args)
		if name == "shutdown" || name == "reboot" || name == "halt" || name == "poweroff" {
			f.aim("machine")
			first(&f.store, "machine")
		}
		if slices.Contains(args, "-9") || slices.Contains(args, "-KILL") {
			f.add(force, name+" -9")
		}
		if slices.Contains(args, "-1") && name == "kill" {
			first(&f.all, "kill -1")
		}
	case "systemctl", "service", "launchctl", "rc-service", "initctl", "supervisorctl", "pm2":
		f.unit(name, args)
	case "crontab", "at", "batch", "schtasks":
		if (name == "at" || name == "batch") && (len(args) == 0 || args[0] != "now" && args[0][0] != '-') {
			return false
		}
		if slices.Contains(args, "-l") {
			f.did(verbRead, name, args)
			return true
		}
		f.did(verbChange, name, args)
		f.add(persistence, name)
		if has(args, 'r', "") {
			f.did(verbDelete, name, args)
		}
		f.aim(name)
	case "iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "setenforce", "auditctl", "aa-disable", "aa-teardown", "apparmor_parser":
		f.did(verbAccess, name, args)
		f.aim("firewall")
		if has(args, 'F', "flush") || slices.Contains(args, "disable") || slices.Contains(args, "flush") || slices.Contains(args, "0") || name == "aa-disable" || name == "aa-teardown" {
			f.add(securityOff, name)
		}
	case "useradd", "adduser", "usermod", "userdel", "deluser", "passwd", "groupadd", "visudo", "chpasswd", "gpasswd", "net":
		if name == "net" && subcommand(args) != "user" && subcommand(args) != "localgroup" {
			return false
		}
		f.did(verbAccess, name, args)
		f.aimAt(args)
		f.aim("account")
	case "mount", "umount", "modprobe", "insmod", "rmmod", "sysctl", "swapoff", "losetup", "chroot", "nsenter", "unshare", "kexec", "bpftool", "capsh":
		f.did(verbAccess, name, args)
		f.add(privilege, name)
		f.aimAt(args)
	case "printenv", "env", "set", "export":
		if len(args) > 0 && name != "printenv" {
			return name == "env"
		}
		f.did(verbRead, name, args)
		f.add(credentialWord, "the whole environment")
		f.aim("environment")
		f.sensitive = true
	case "history":
		if has(args, 'c', "") || has(args, 'w', "") {
			f.did(verbDelete, name, args)
			f.add(securityOff, "history -c")
			f.aim("history")
		}
	default:
		return false
	}
	return true
}

func (f *finder) unit(name string, args []string) {
	for _, a := range args {
		switch strings.ToLower(a) {
		case "stop", "disable", "mask", "kill", "restart", "unload", "isolate", "poweroff", "reboot", "halt", "bootout":
			f.did(verbStop, name, args)
		case "enable", "load", "bootstrap":
			f.did(verbChange, name, args)
			f.add(persistence, name+" "+a)
		case "start", "reload":
			f.did(verbRun, name, args)
		case "status", "list-units", "is-active", "show":
			f.did(verbRead, name, args)
		default:
			if a[0] != '-' {
				f.aim(a)
			}
		}
	}
}
