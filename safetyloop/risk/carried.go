// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Many programs run another one that an option, a script or a variable names: tar --checkpoint-action=exec=id
// says no more at its front than "tar". The tables here are those ways, in the spirit of GTFOBins. What isn't
// in them isn't found: this judges words, and a Makefile, a hook or a file that is named may hold anything.

// carrier is one way of a program to run another.
type carrier struct {
	commands string // names, apart by a space
	// option is the option whose value is looked at, long ones also cut short as getopt_long(3) takes them;
	// "" is every argument, "1" the first that is no option.
	option string
	// holds are texts of which the value must hold one, in lower case and without spaces; with ^ it must
	// begin so. "" takes every value.
	holds string
	// usual are honest values, in lower case: whole, or up to a space or colon; what ends in / or : goes on
	// as it likes.
	usual string
	why   string
}

const (
	pagers  = "less more cat most bat"
	editors = "vi vim nvim view ex rvim vimdiff"
	// gitKeys are git's settings that name a program, by git-config(1).
	gitKeys = "core.sshcommand core.pager core.fsmonitor core.editor core.hookspath core.gitproxy core.askpass alias. pager. " +
		"diff.external difftool. mergetool. credential. filter. textconv uploadpack. .uploadpack .receivepack sequence.editor " +
		"gpg. protocol. include includeif. trailer. interactive.difffilter .driver browser. man. instaweb. init.templatedir " +
		"sendemail. .update="
	gitUsual = "core.pager=cat core.pager=less core.editor=true core.fsmonitor=false core.fsmonitor=true " +
		"core.hookspath=/dev/null"
	sshKeys = "proxycommand localcommand knownhostscommand proxyusefdpass pkcs11provider securitykeyprovider " +
		"xauthlocation sendenv=ld include"
)

var carriers = [...]carrier{
	{"tar gtar bsdtar", "--checkpoint-action", "exec=", "", "runs a command at every checkpoint"},
	{"tar gtar bsdtar", "--to-command", "", "", "runs a command for every file that is extracted"},
	{"tar gtar bsdtar", "--info-script", "", "", "runs a command at the end of every volume"},
	{"tar gtar bsdtar", "--new-volume-script", "", "", "runs a command at the end of every volume"},
	{"tar gtar bsdtar", "-F", "", "", "runs a command at the end of every volume"},
	{"tar gtar bsdtar", "--rsh-command", "", "ssh", "runs a command to reach the archive"},
	{"tar gtar bsdtar", "--rmt-command", "", "", "runs a command on the archive's host"},
	{"tar gtar bsdtar", "--use-compress-program", "", compressors, "runs a command as compressor"},
	{"tar gtar", "-I", "", compressors, "runs a command as compressor"},
	{"cpio", "--rsh-command", "", "ssh", "runs a command to reach the archive"},
	{"zip", "-TT", "", "", "runs a command to test the archive"},
	{"zip", "--unzip-command", "", "", "runs a command to test the archive"},
	{"rsync", "-e", "", "ssh", "runs a command to reach the other host"},
	{"rsync", "--rsh", "", "ssh", "runs a command to reach the other host"},
	{"rsync", "--rsync-path", "", "rsync", "runs a command on the other host"},
	{"ssh scp sftp", "-o", sshKeys, "", "runs a command to reach the host, or after"},
	{"ssh scp sftp", "-F", "", "", "reads settings that may name commands"},
	{"ssh-keygen ssh-add ssh", "-D", ".so", "", "loads a library"},
	{"ssh-add ssh", "-I", "/", "", "loads a library"},
	{"ssh-add", "-s", "", "", "loads a library"},
	{"scp sftp", "-S", "", "ssh", "runs a command to reach the host"},
	{"git", "-c", gitKeys, gitUsual, "sets a command that git runs"},
	{"git", "--config-env", gitKeys, gitUsual, "sets a command that git runs"},
	{"git", "--config", gitKeys, gitUsual, "sets a command that git runs"},
	{"git", "--exec-path", "/", "", "takes git's own programs from a folder"},
	{"git", "--upload-pack", "", "git-upload-pack", "runs a command as the other side"},
	{"git", "--receive-pack", "", "git-receive-pack", "runs a command as the other side"},
	{"git", "--exec", "", "make go npm cargo pytest", "runs a command for every commit, or as the other side"},
	{"git", "--open-files-in-pager", "", pagers, "runs a command on the files found"},
	{"git", "--ext-diff", "", "", "runs the diff programs of settings"},
	{"git", "", "ext::", "", "runs a command as transport"},
	{"hg", "--config", "alias. hooks. ui.ssh pager. merge-tools. extensions.", "", "sets a command that hg runs"},
	{"svn", "--editor-cmd", "", "vi nano", "runs a command as editor"},
	{"svn", "--diff-cmd", "", "diff", "runs a command as diff"},
	{"svn", "--config-option", "tunnels:", "", "runs a command to reach the repository"},
	{editors, "-c", editorCode, "", "runs a command of the editor that starts programs"},
	{editors, "--cmd", editorCode, "", "runs a command of the editor that starts programs"},
	{editors, "-S", "", "", "runs a script of the editor"},
	{editors, "", "^+! ^+:! ^+py ^+:py ^+lua ^+:lua ^+call", "", "runs a command of the editor that starts programs"},
	{"ed", "", "^!", "", "runs a command"},
	{"emacs emacsclient", "--eval", "", "", "runs code of the editor"},
	{"emacs", "-l", "", "", "runs code of the editor"},
	{"nano pico", "-s", "", "aspell hunspell", "runs a command as speller"},
	{"less more", "", "^+!", "", "runs a command from the pager"},
	{"man", "-P", "", pagers, "runs a command as pager"},
	{"man", "--pager", "", pagers, "runs a command as pager"},
	{"man", "--html", "", "lynx w3m", "runs a command as browser"},
	{"awk gawk mawk nawk original-awk", "", `system( |getline |& |"`, "", "starts programs from its script"},
	{"gawk", "-l", "", "", "loads a library"},
	{"xargs parallel", "1", "^./ ^../ ^/tmp/ ^/dev/shm/", "", "runs a program of the workspace for each argument"},
	{"find fd", "-exec", "^./ ^../ ^/tmp/ ^/dev/shm/", "", "runs a program of the workspace for each file"},
	{"find fd", "-execdir", "", "", "runs a program in the folder of each file"},
	{"find fd", "-ok", "^./ ^../ ^/tmp/ ^/dev/shm/", "", "runs a program of the workspace for each file"},
	{"fd fdfind", "--exec", "", "", "runs a program for each file"},
	{"fd fdfind", "--exec-batch", "", "", "runs a program for each file"},
	{"env", "-S", "", "", "splits a text into a command and its arguments"},
	{"env", "--split-string", "", "", "splits a text into a command and its arguments"},
	{"make gmake", "--eval", "", "", "evaluates text as a makefile, which runs commands"},
	{"make gmake", "", "$(shell shell= .shellflags= makefiles=", "", "sets what the makefile runs"},
	{"make gmake", "-f", "^/tmp/ ^/dev/ ^../", "", "runs a makefile from elsewhere"},
	{"npm pnpm yarn npx", "--script-shell", "", "", "runs scripts by another program"},
	{"npm pnpm yarn npx", "--node-options", "require import loader inspect", "", "has node load code"},
	{"npm npx", "--call", "", "", "runs a text as a command"},
	{"npm npx", "-c", "", "", "runs a text as a command"},
	{"npm pnpm yarn", "", "script-shell", "", "runs scripts by another program"},
	{"pip pip3 uv", "--index-url", "://", "https://pypi.org", "installs from another place"},
	{"pip pip3 uv", "--extra-index-url", "://", "https://pypi.org", "installs from another place too"},
	{"curl", "-K", "", "", "reads options from a file"},
	{"curl", "--config", "", "", "reads options from a file"},
	{"curl", "--engine", "", "", "loads a library"},
	{"wget", "--use-askpass", "", "", "runs a command to ask for a password"},
	{"wget", "-e", "use_askpass output_document", "", "sets options that run or write"},
	{"wget", "--execute", "use_askpass output_document", "", "sets options that run or write"},
	{"wget", "--config", "", "", "reads options from a file"},
	{"openssl", "-engine", "", "", "loads a library"},
	{"openssl", "-provider-path", "", "", "loads a library"},
	{"sort", "--compress-program", "", compressors, "runs a command as compressor"},
	{"split", "--filter", "", compressors, "runs a command for each part"},
	{"gcc g++ cc c++ clang", "-wrapper", "", "", "runs a command before the compiler"},
	{"gcc g++ cc c++ clang", "", "-fplugin=", "", "loads a library"},
	{"go", "-toolexec", "", "", "runs a command in place of every tool"},
	{"go", "-exec", "", "", "runs a command in place of the program"},
	{"cargo", "--config", "wrapper runner linker", "", "sets a command that cargo runs"},
	{"cmake", "-P", "", "", "runs a script"},
	{"gradle", "-I", "", "", "runs a script"},
	{"gradle", "--init-script", "", "", "runs a script"},
	{"node nodejs", "-r", "^./ ^../ ^/", "", "loads code before the program"},
	{"node nodejs", "--require", "^./ ^../ ^/", "", "loads code before the program"},
	{"node nodejs", "--import", "", "", "loads code before the program"},
	{"php", "-d", "auto_prepend_file auto_append_file extension", "", "loads code before the program"},
	{"powershell pwsh", "-encodedcommand", "", "", "runs what nobody can read"},
	{"powershell pwsh", "-ec", "", "", "runs what nobody can read"},
	{"gdb", "-ex", "^! ^shell ^python ^py system(", "", "runs a command of the debugger that starts programs"},
	{"gdb", "--eval-command", "^! ^shell ^python ^py system(", "", "runs a command of the debugger that starts programs"},
	{"gdb", "-x", "", "", "runs a script of the debugger"},
	{"mysql mariadb", "-e", `\! ^system`, "", "runs a command from the client"},
	{"psql", "-c", `\! fromprogram toprogram`, "", "runs a command from the client"},
	{"sqlite3", "", ".shell .system .load", "", "runs a command from the client"},
	{"tcpdump", "-z", "", "gzip bzip2 xz", "runs a command after each file"},
	{"flock", "-c", "", "", "runs a text as a command"},
	{"script", "-c", "", "", "runs a text as a command"},
	{"expect", "-c", "", "", "runs a script"},
	{"tmux", "", "run-shell if-shell pipe-pane", "", "runs a command in another session"},
	{"apt apt-get aptitude", "-o", "::", "dpkg::options: debug:: apt::install-recommends=false", "sets a command that apt runs"},
	{"rpm", "--eval", "%(", "", "runs a command in a macro"},
	{"rpm", "--pipe", "", "", "runs a command on the output"},
	{"dpkg", "--pre-invoke", "", "", "runs a command before"},
	{"start-stop-daemon", "--exec", "^./ ^../ ^/tmp/", "", "runs a program of the workspace"},
	{"start-stop-daemon", "-x", "^./ ^../ ^/tmp/", "", "runs a program of the workspace"},
	{"systemd-run", "", "", "", "runs a command outside of what started it"},
	{"logrotate run-parts", "1", "^./ ^../ ^/tmp/", "", "runs what stands in a folder or file of the workspace"},
	{"ansible", "-m", "shell command raw script", "", "runs a command on other hosts"},
	{"ldconfig", "-f", "", "", "sets where libraries are taken from"},
	{loaders, "", "", "", "runs any program as an argument of the dynamic linker"},
}

const (
	compressors = "gzip pigz bzip2 pbzip2 xz zstd lz4 lzip lzma compress brotli"
	editorCode  = "^! ^:! ^r! ^:r! ^py ^:py ^lua ^:lua system( ^perl ^:perl ^ruby ^:ruby ^so ^:so ^term ^:term"
	loaders     = "ld.so ld-linux.so.2 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 ld-musl-x86_64.so.1"
)

// variables name code that another program runs or loads, or where it looks for it. commands is not used.
var variables = [...]carrier{
	{"", "LD_PRELOAD", "", "", "every program that follows loads this library"},
	{"", "LD_AUDIT", "", "", "every program that follows loads this library"},
	{"", "LD_LIBRARY_PATH", "", "/usr/ /opt/ $ld_library_path", "libraries are taken from there"},
	{"", "DYLD_INSERT_LIBRARIES", "", "", "every program that follows loads this library"},
	{"", "DYLD_LIBRARY_PATH", "", "/usr/ /opt/", "libraries are taken from there"},
	{"", "GCONV_PATH", "", "", "libraries are taken from there"},
	{"", "GLIBC_TUNABLES", "", "", "changes how every program is loaded"},
	{"", "PATH", "", "$path /usr/ /bin /opt/ ~/ $home/ ./node_modules/.bin node_modules/.bin $pwd/node_modules/.bin", "programs are taken from there first"},
	{"", "BASH_ENV", "", "", "a shell runs this file first"},
	{"", "ENV", "/ .sh $( `", "", "a shell runs this file first"},
	{"", "PROMPT_COMMAND", "", "", "a shell runs this at each prompt"},
	{"", "PS4", "$( `", "", "a shell runs what stands in it"},
	{"", "SHELLOPTS", "", "", "changes how a shell runs scripts"},
	{"", "ZDOTDIR", "", "", "a shell takes its start-up files from there"},
	{"", "PYTHONSTARTUP", "", "", "Python runs this file first"},
	{"", "PYTHONHOME", "", "", "Python takes its library from there"},
	{"", "PYTHONPATH", "^/tmp ^/dev/shm ^../", "", "Python takes modules from there first"},
	{"", "PYTHONBREAKPOINT", "", "0", "Python calls this"},
	{"", "PYTHONWARNINGS", "import", "", "Python imports this"},
	{"", "NODE_OPTIONS", "require import loader ^-r inspect", "", "node loads this first"},
	{"", "NODE_PATH", "^/tmp ^/dev/shm ^../", "", "node takes modules from there"},
	{"", "PERL5OPT", "", "", "Perl loads this first"},
	{"", "PERL5LIB", "^/tmp ^/dev/shm ^./ ^../", "", "Perl takes modules from there first"},
	{"", "PERL5DB", "", "", "Perl runs this first"},
	{"", "RUBYOPT", "-r", "", "Ruby loads this first"},
	{"", "RUBYLIB", "^/tmp ^/dev/shm ^./ ^../", "", "Ruby takes modules from there first"},
	{"", "LUA_INIT", "", "", "Lua runs this first"},
	{"", "PHPRC", "", "", "PHP takes its settings from there"},
	{"", "PHP_INI_SCAN_DIR", "", "", "PHP takes its settings from there"},
	{"", "JAVA_TOOL_OPTIONS", "agent xrun bootclasspath onoutofmemory", "", "Java loads or runs this"},
	{"", "_JAVA_OPTIONS", "agent xrun bootclasspath onoutofmemory", "", "Java loads or runs this"},
	{"", "DOTNET_STARTUP_HOOKS", "", "", ".NET loads this first"},
	{"", "CORECLR_PROFILER_PATH", "", "", ".NET loads this first"},
	{"", "GIT_SSH", "", "ssh /usr/bin/ssh", "git runs this to reach a host"},
	{"", "GIT_SSH_COMMAND", "", "ssh", "git runs this to reach a host"},
	{"", "GIT_PROXY_COMMAND", "", "", "git runs this to reach a host"},
	{"", "GIT_EXTERNAL_DIFF", "", "", "git runs this for each file"},
	{"", "GIT_PAGER", "", pagers, "git runs this"},
	{"", "GIT_EDITOR", "", editorsUsual, "git runs this"},
	{"", "GIT_SEQUENCE_EDITOR", "", editorsUsual, "git runs this"},
	{"", "GIT_ASKPASS", "", "echo true /bin/true", "git runs this"},
	{"", "GIT_EXEC_PATH", "", "", "git takes its own programs from there"},
	{"", "GIT_TEMPLATE_DIR", "", "", "git takes hooks from there"},
	{"", "GIT_CONFIG_PARAMETERS", "", "", "sets commands that git runs"},
	{"", "GIT_CONFIG_COUNT", "", "", "sets commands that git runs"},
	{"", "GIT_CONFIG_GLOBAL", "", "/dev/null", "sets commands that git runs"},
	{"", "GIT_CONFIG_SYSTEM", "", "/dev/null", "sets commands that git runs"},
	{"", "SSH_ASKPASS", "", "", "ssh runs this"},
	{"", "PAGER", "", pagers, "other programs run this"},
	{"", "MANPAGER", "", pagers, "man runs this"},
	{"", "EDITOR", "", editorsUsual, "other programs run this"},
	{"", "VISUAL", "", editorsUsual, "other programs run this"},
	{"", "BROWSER", "", "firefox chromium lynx w3m none true", "other programs run this"},
	{"", "LESSOPEN", "", "", "less runs this for each file"},
	{"", "LESSCLOSE", "", "", "less runs this for each file"},
	{"", "MAKEFLAGS", "eval shell=", "", "make runs this"},
	{"", "TAR_OPTIONS", "exec= command compress-program", "", "tar runs this"},
	{"", "RSYNC_RSH", "", "ssh", "rsync runs this"},
	{"", "GOFLAGS", "exec", "", "go runs this in place of its tools"},
	{"", "RUSTC_WRAPPER", "", "sccache", "cargo runs this in place of the compiler"},
	{"", "NPM_CONFIG_SCRIPT_SHELL", "", "", "npm runs scripts by this"},
	{"", "OPENSSL_CONF", "", "/dev/null", "OpenSSL loads libraries that it names"},
	{"", "OPENSSL_ENGINES", "", "", "OpenSSL loads libraries from there"},
}

const editorsUsual = "vi vim nvim nano emacs code true cat : ed"

// spawners are what code in an option calls to run a program, or other code: -e 'print(1)' needs none of
// them.
var spawners = [...]carrier{
	{"php", "", "system( exec( passthru( popen( proc_open( eval( assert( include( pcntl_ `", "", "PHP code that starts programs"},
	{"perl", "", "system exec qx open( eval fork socket `", "", "Perl code that starts programs"},
	{"ruby", "", "system exec %x spawn popen open( open3 eval fork socket `", "", "Ruby code that starts programs"},
	{"lua luajit", "", "os.execute io.popen loadstring load( dofile loadlib", "", "Lua code that starts programs"},
	{"python python2 python3 pypy", "", "system( popen subprocess spawn exec( pty. eval( __import__ importlib socket ctypes", "",
		"Python code that starts programs"},
	{"node nodejs deno bun", "", "child_process spawn exec( execsync eval( function( process.binding deno.run deno.command", "",
		"JavaScript that starts programs"},
	{"osascript", "", "doshellscript", "", "AppleScript that starts programs"},
	{"tclsh wish", "", "exec open spawn", "", "Tcl code that starts programs"},
	{"julia", "", "run(", "", "Julia code that starts programs"},
	{"rscript", "", "system( system2(", "", "R code that starts programs"},
}

// sedRuns takes the command e, and the flag e of s: both have sed run a shell, by sed(1).
var sedRuns = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|[;{]|^[0-9$,]+|^/[^/]*/)\s*e\s+\S|^[0-9$,]*s(/[^/]*/[^/]*/|\|[^|]*\|[^|]*\||#[^#]*#[^#]*#)[gpimI0-9]*e`)
})

// rules of a table by the command, or variable, that they are for.
func rules(table []carrier, key func(*carrier) string) map[string][]*carrier {
	m := map[string][]*carrier{}
	for i := range table {
		for _, name := range strings.Fields(key(&table[i])) {
			m[name] = append(m[name], &table[i])
		}
	}
	return m
}

var (
	carriersOf  = sync.OnceValue(func() map[string][]*carrier { return rules(carriers[:], func(c *carrier) string { return c.commands }) })
	spawnersOf  = sync.OnceValue(func() map[string][]*carrier { return rules(spawners[:], func(c *carrier) string { return c.commands }) })
	variablesOf = sync.OnceValue(func() map[string][]*carrier { return rules(variables[:], func(c *carrier) string { return c.option }) })
)

// carried looks for another command within a command's arguments.
func (f *finder) carried(name string, args []string) {
	with, code := carriersOf()[name], spawnersOf()[name]
	if with == nil && code == nil && name != "sed" && name != "gsed" {
		return
	}
	args = rejoined(args)
	for _, c := range with {
		if v, ok := c.value(args); ok {
			f.carries(name, name+" "+strings.TrimLeft(c.option+" "+v, "1 ")+": "+c.why)
			f.encoded(name, v)
		}
	}
	for i, a := range args {
		for _, c := range code {
			if a[0] == '-' && among(a, c.holds) || i > 0 && args[i-1][0] == '-' && among(a+"(", c.holds) {
				f.carries(name, name+": "+c.why)
			}
		}
		if (name == "sed" || name == "gsed") && sedRuns().MatchString(a) {
			f.carries(name, name+": a script that runs commands")
		}
	}
}

func (f *finder) carries(name, detail string) {
	f.act(verbRun, name)
	f.add(carriedCommand, detail)
}

// variable judges an assignment before a command, or by export.
func (f *finder) variable(name, value string) {
	for _, v := range variablesOf()[name] {
		if v.fits(value) {
			f.carries(name, name+"="+value+": "+v.why)
			f.aim(name)
		}
	}
}

// value finds the option's, or that of the argument that is meant.
func (c *carrier) value(args []string) (string, bool) {
	for i, a := range args {
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		name, v, assigned := strings.Cut(a, "=")
		switch {
		case c.option == "":
			v = a
		case c.option == "1":
			if v = a; a[0] == '-' || strings.Trim(a, "0123456789") == "" {
				continue
			}
			return v, c.fits(v)
		case a == "--":
			return "", false // what follows are no options of this command
		case long(c.option, name):
			if !assigned {
				v = next
			}
		case len(c.option) == 2 && strings.HasPrefix(a, c.option) && len(a) > 2:
			v = a[2:]
		case len(c.option) == 2 && cluster(a, c.option[1]):
			v = next
		default:
			continue
		}
		if c.fits(v) {
			return v, true
		}
	}
	return "", false
}

// cluster takes -K, and -sK: the last of several letters takes the value.
func cluster(a string, last byte) bool {
	return len(a) > 1 && a[0] == '-' && a[len(a)-1] == last &&
		!strings.ContainsFunc(a[1:], func(r rune) bool { return r >= utf8.RuneSelf || !letter(byte(r)) })
}

// long compares the name of an option of more than one letter; getopt_long(3) takes any beginning that is
// clear.
func long(option, name string) bool {
	switch {
	case len(option) <= 2:
		return false
	case strings.HasPrefix(option, "--"):
		return len(name) >= 5 && strings.HasPrefix(option, strings.ToLower(name))
	case option == "-encodedcommand": // PowerShell takes any beginning, in any case
		return len(name) > 1 && strings.HasPrefix(option, strings.ToLower(name))
	}
	return name == option
}

func (c *carrier) fits(value string) bool {
	value = strings.ToLower(strings.Trim(value, `'"`))
	if value == "" {
		return false
	}
	for _, u := range strings.Fields(c.usual) {
		rest, ok := strings.CutPrefix(value, u)
		if ok && (rest == "" || strings.IndexByte(" :", rest[0]) >= 0 || strings.HasSuffix(u, "/") || strings.HasSuffix(u, ":")) &&
			!strings.ContainsAny(value, ";|&`(") {
			return false
		}
	}
	return c.holds == "" || among(value, c.holds)
}

// among tells whether a value holds one of a list's texts; spaces in it don't count.
func among(value, list string) bool {
	value = strings.ReplaceAll(strings.ToLower(value), " ", "")
	for _, s := range strings.Fields(list) {
		if begins, ok := strings.CutPrefix(s, "^"); ok && strings.HasPrefix(value, begins) || !ok && strings.Contains(value, s) {
			return true
		}
	}
	return false
}

// encoded adds that a value can't be read by whoever confirms the hint, and reads it.
func (f *finder) encoded(name, value string) {
	if name == "powershell" || name == "pwsh" {
		f.add(disguised, "an encoded command")
		f.text(utf16(value), maxDepth)
	}
}

// utf16 reads what PowerShell's -EncodedCommand takes: base64 of UTF-16, little end first. Only ASCII is of
// interest.
func utf16(value string) string {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil || len(b)%2 != 0 {
		return ""
	}
	var out strings.Builder
	for i := 0; i < len(b); i += 2 {
		if b[i+1] == 0 && b[i] < utf8.RuneSelf {
			out.WriteByte(b[i])
		}
	}
	return out.String()
}

// rejoined puts together what the words of prose were cut at: --option = value.
func rejoined(args []string) []string {
	if !slices.Contains(args, "=") {
		return args
	}
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] != "=" || len(out) == 0 {
			out = append(out, args[i])
			continue
		}
		out[len(out)-1] += "="
		if i+1 < len(args) && args[i+1] != "=" {
			i++
			out[len(out)-1] += args[i]
		}
	}
	return out
}
