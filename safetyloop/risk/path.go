// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"path"
	"slices"
	"strings"
)

// pathLike tells a path from a word: absolute, relative with dots, in the home folder, on a Windows drive, or a name with a
// suffix that files have.
func pathLike(s string) bool {
	switch {
	case s == "" || strings.Contains(s, "://"):
		return false
	case s[0] == '/', s[0] == '~', strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"), s == "..", drive(s), strings.HasPrefix(s, "$HOME"), s[0] == '.' && len(s) > 2 && letter(s[1]), strings.Contains(s, "/../"):
		return true
	}
	return suffix(strings.ToLower(path.Ext(s)))
}

func letter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func drive(s string) bool {
	return len(s) > 2 && letter(s[0]) && s[1] == ':' && (s[2] == '/' || s[2] == '\\')
}

// suffix takes those of files. A name such as fs.delete_file has none of them.
func suffix(ext string) bool {
	switch ext {
	case ".json", ".yaml", ".yml", ".toml", ".ini", ".conf", ".cfg", ".env", ".txt", ".md", ".rst", ".csv", ".tsv", ".log", ".lock", ".xml", ".html", ".css", ".scss", ".js", ".mjs", ".ts", ".tsx", ".jsx", ".py", ".go", ".rs", ".rb", ".php", ".java",
		".kt", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".swift", ".sh", ".bash", ".zsh", ".bat", ".ps1", ".sql", ".db", ".sqlite", ".sqlite3", ".bak", ".tmp", ".pem", ".key", ".crt", ".pub", ".p12", ".pfx", ".kdbx", ".pdf", ".doc", ".docx", ".xls", ".xlsx", ".png", ".jpg",
		".jpeg", ".gif", ".svg", ".webp", ".mp3", ".mp4", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".exe", ".dll", ".so", ".o", ".a", ".img", ".iso", ".mod", ".sum", ".proto", ".tf", ".tfstate", ".ipynb", ".parquet", ".service", ".pyc", ".wasm", ".deb", ".rpm":
		return true
	}
	return false
}

// places judges the paths, once it is known what is done.
func (f *finder) places() {
	for _, p := range f.paths {
		if p.prose && slices.Contains(f.programs, p.path) {
			continue
		}
		f.judge(p.path, p.changes || p.prose && f.rewrites())
	}
	if f.found[changesOutside] {
		f.found[readsOutside] = false
	}
}

func (f *finder) judge(raw string, changes bool) {
	name := cleaned(raw)
	if w := f.env.Workspace; w != "" && (name == ".." || strings.HasPrefix(name, "../")) {
		name = path.Join(w, name) // at least: from a folder further down it may lead out as well
	}
	if changes && starts(name) {
		f.add(persistence, raw)
	}
	if credentials(name) {
		f.add(credentialPath, raw)
		f.sensitive = true
	}
	if changes && root(name) {
		f.add(targetRoot, raw)
		return
	}
	if harmless(name) || f.inside(name) {
		return
	}
	if osPath(name) {
		f.add(systemPath, raw)
	}
	if changes {
		f.add(changesOutside, raw)
	} else {
		f.add(readsOutside, raw)
	}
	f.sensitive = f.sensitive || osPath(name)
}

// starts takes the files that something is run from later.
func starts(p string) bool {
	for _, part := range [...]string{"/.bashrc", "/.bash_profile", "/.profile", "/.zshrc", "/.zprofile", "/etc/cron", "/etc/systemd/", "/etc/init.d/", "/etc/rc.local", "/etc/profile", "/.config/autostart", "/.config/systemd", "/.git/hooks", "/launchagents/", "/launchdaemons/", "/var/spool/cron", "/etc/ld.so.preload"} {
		if strings.Contains(strings.ToLower("/"+p), part) {
			return true
		}
	}
	return false
}

// cleaned resolves dots without looking at any file, and takes every spelling of a home folder as ~.
func cleaned(p string) string {
	p = strings.ReplaceAll(p, "\\", "/")
	for _, home := range [...]string{"$HOME", "${HOME}", "$home"} {
		if rest, ok := strings.CutPrefix(p, home); ok {
			p = "~" + rest
		}
	}
	if strings.HasPrefix(p, "file:/") {
		p = "/" + strings.TrimLeft(p[len("file:/"):], "/")
	}
	star := strings.HasSuffix(p, "/*") || strings.HasSuffix(p, "/.")
	p = path.Clean(p)
	if star && path.Base(p) != "*" {
		p = path.Join(p, "*")
	}
	if strings.HasPrefix(p, "//") {
		p = p[1:]
	}
	return p
}

func (f *finder) inside(p string) bool {
	switch {
	case strings.HasPrefix(p, "~"), drive(p):
		return false
	case strings.HasPrefix(p, "/"):
		w := path.Clean(f.env.Workspace)
		return f.env.Workspace != "" && w != "/" && (p == w || strings.HasPrefix(p, w+"/"))
	}
	return p != ".." && !strings.HasPrefix(p, "../")
}

// root takes what nothing is left of when it is gone.
func root(p string) bool {
	switch lower := strings.ToLower(p); {
	case p == "/" || p == "/*" || p == "~" || p == "~/*" || p == "/home" || p == "/home/*" || p == "/root" || p == "/root/*" || p == "/etc" || p == "/etc/*" || p == "/usr" || p == "/var" || p == "/boot" || p == "/bin" || p == "/lib" || p == "/dev":
		return true
	case len(lower) <= 4 && drive(lower+"/"), strings.HasPrefix(lower, "c:/windows"):
		return true
	case strings.HasPrefix(lower, "/dev/"):
		return device(lower[len("/dev/"):])
	case strings.HasPrefix(p, "/home/"), strings.HasPrefix(p, "/Users/"):
		return strings.Count(p, "/") == 2
	}
	return false
}

func device(name string) bool {
	for _, prefix := range [...]string{"sd", "hd", "vd", "xvd", "nvme", "mmcblk", "disk", "mapper/", "dm-", "md", "loop", "mem", "kmem"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func harmless(p string) bool {
	switch p {
	case "/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", "/dev/urandom", "/dev/random", "/tmp", "/", "/dev/tty":
		return true
	}
	return strings.HasPrefix(p, "/tmp/") || strings.HasPrefix(p, "/dev/fd/")
}

func osPath(p string) bool {
	if strings.HasSuffix(p, ".sock") {
		return true
	}
	for _, top := range [...]string{"/etc", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/dev", "/var", "/root", "/run", "/System", "/Library", "C:/Windows", "c:/windows"} {
		if p == top || strings.HasPrefix(p, top+"/") {
			return true
		}
	}
	return false
}

// credentials takes the usual places of keys and passwords.
func credentials(p string) bool {
	p = strings.ToLower(p)
	for _, part := range [...]string{"/.ssh", "/.aws/", "/.kube", "/.gnupg", "/.docker/config", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/.config/gcloud", "/.azure", "/etc/krb5.keytab", "/run/secrets", "/var/run/secrets", "/etc/ssl/private", "login data", "/keychains/", "/.password-store", "/.mozilla", "/.git/config"} {
		if strings.Contains("/"+p, part) {
			return true
		}
	}
	base := path.Base(p)
	switch base {
	case "id_rsa", "id_ed25519", "id_ecdsa", "id_dsa", ".env", ".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", "authorized_keys", ".vault-token", "kubeconfig", "wallet.dat", "shadow", "credentials", "credentials.json", "secrets.json", "secrets.yaml", "secrets.yml", "secrets", ".htpasswd", "terraform.tfstate", "environ", "secret.key", "master.key":
		return base != "shadow" && base != "environ" || strings.HasPrefix(p, "/etc") || strings.HasPrefix(p, "/proc")
	}
	if strings.HasPrefix(base, ".env.") {
		return base != ".env.example" && base != ".env.sample" && base != ".env.template"
	}
	switch path.Ext(base) {
	case ".pem", ".key", ".p12", ".pfx", ".kdbx", ".keytab", ".jks":
		return true
	}
	return false
}
