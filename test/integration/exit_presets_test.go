// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"agentrun/internal/hostcaps"
	"agentrun/test/exit"
)

// intercepting is opts without the variables that name the world's CA: where TLS is read, programs trust the run's own.
func (x *exit) intercepting(flags ...string) opts {
	o := x.opts("ring2", flags...)
	o.flags = slices.DeleteFunc(slices.Clone(o.flags), func(f string) bool { return f == "--env" || strings.HasSuffix(f, "=/ca.pem") })
	return o
}

// presetHosts are the first hosts of the presets.
func presetHosts(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../toolproxy/forward/presets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string][]struct{ Host string }
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	first := map[string]string{}
	for name, rules := range all {
		first[name] = rules[0].Host
	}
	return first
}

// M-8: a preset lets a registry be read and nothing else: no other method, path or host, nothing sent along, no tunnel, and no reply
// beyond its bound; by the flag and by the configuration.
func TestM8PresetsReadARegistry(t *testing.T) {
	t.Parallel()
	needProgram(t, "curl", "python3")
	x := newExit(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s of %s\n", r.Method, r.Host) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5368709120") })
	hosts := presetHosts(t)
	npm, index, archive := x.host(hosts["npm"], mux), x.host(hosts["pypi"], mux), x.host(hosts["debian"], mux)
	inNPM, inPyPI, inDebian := "https://"+npm.Name, "https://"+index.Name, "://"+archive.Name
	curl := func(name string, argv ...string) step {
		return step{name, append([]string{"curl", "-sS", "-i", "-m", "10"}, argv...)}
	}
	got, r := x.programs(x.intercepting("--allow", "preset:npm", "--allow", "preset:debian"),
		curl("package", inNPM+"/left-pad"),
		curl("captured", "--noproxy", "*", inNPM+"/@scope%2fname"),
		curl("publish", "-X", "PUT", inNPM+"/left-pad"),
		curl("audit", "-d", "{}", inNPM+"/-/npm/v1/security/audits/quick"),
		curl("smuggled out", "-X", "GET", "-d", "secrets", inNPM+"/left-pad"),
		curl("large", inNPM+"/large"),
		curl("in the clear", "http://"+npm.Name+"/left-pad"),
		curl("another", inPyPI+"/simple/x/"),
		curl("apt", "http"+inDebian+"/debian/dists/stable/InRelease"),
		curl("apt over https", "https"+inDebian+"/debian/dists/stable/InRelease"),
		curl("beside the archive", "http"+inDebian+"/elsewhere"),
	)
	r.want(t, 0, "exited")
	for name, want := range map[string]string{
		"package": "GET of " + npm.Name, "captured": "GET of " + npm.Name, "publish": "method_not_listed", "audit": "method_not_listed",
		"smuggled out": "limit_reached", "large": "limit_reached", "in the clear": "port_not_listed", "another": "CONNECT tunnel failed, response 403",
		"apt": "GET of " + archive.Name, "apt over https": "GET of " + archive.Name, "beside the archive": "path_not_listed",
	} {
		if o := got[name]; !strings.Contains(o.Out+o.Err, want) {
			t.Errorf("%s: got %q\n%s\nwant %q in it", name, o.Out, o.Err, want)
		}
	}
	quiet(t, index)
	for _, v := range append(npm.Visits(), archive.Visits()...) {
		if v.Method != http.MethodGet || len(v.Body) > 0 {
			t.Errorf("%s %s with %q has reached %s", v.Method, v.URI, v.Body, v.Host)
		}
	}

	x.settings.section("egress")["presets"] = []string{"pypi"}
	got, r = x.programs(x.intercepting(), curl("simple", inPyPI+"/simple/x/"), curl("elsewhere", inPyPI+"/manage/account/"))
	r.want(t, 0, "exited")
	for name, want := range map[string]string{"simple": "GET of " + index.Name, "elsewhere": "path_not_listed"} {
		if o := got[name]; !strings.Contains(o.Out+o.Err, want) {
			t.Errorf("by the configuration, %s: got %q\n%s\nwant %q in it", name, o.Out, o.Err, want)
		}
	}
	wrong := x.run(x.opts("ring2", "--allow", "preset:nmp"), "/bin/true")
	if wrong.exit != 125 || !strings.Contains(wrong.stderr, "crates, debian, go, npm, pypi") {
		t.Errorf("a preset that isn't: exit %d, %q", wrong.exit, wrong.stderr)
	}
}

// M-12: git inside has no credential: the token is put in on the way out, by rule for one repository, and comes back covered. What is
// pushed is on record with its repository and the number of references. Who commits is the node's word, by the environment.
func TestM12GitTokenOfARepository(t *testing.T) {
	t.Parallel()
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "git", "python3", "curl")
	x := newExit(t)
	dir := t.TempDir()
	served, err := exittest.Git(dir, "tool", "text of the file\n")
	if err != nil {
		t.Fatal(err)
	}
	bare := filepath.Join(dir, "bare", "tool.git")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", bare}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	git("config", "http.receivepack", "true")
	mux := http.NewServeMux()
	mux.HandleFunc("/git/", func(w http.ResponseWriter, r *http.Request) {
		if user, token, ok := r.BasicAuth(); !ok || user != "x-access-token" || token != x.secret {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		served.ServeHTTP(w, r)
	})
	mux.HandleFunc("/git/tool.git/echo", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "you sent <%s>", r.Header.Get("Authorization"))
	})
	x.host("repo.test", mux)
	x.settings.section("egress")["rules"] = []object{{
		"host": "repo.test", "paths": []string{"/git/tool.git/"}, "intercept": true,
		"headers": object{"Authorization": object{"secret": "key", "user": "x-access-token"}},
	}}
	o := x.intercepting()
	config := t.TempDir()
	write(t, filepath.Join(config, "agentrun", "config.yaml"), "git: {name: The agents, email: agents@example.com}\n", 0o600)
	o.env = []string{"XDG_CONFIG_HOME=" + config}
	work := `rm -rf c && git clone -q https://repo.test/git/tool.git c && cd c && echo more >> README && git commit -qam two &&
git push -q origin HEAD:main HEAD:refs/heads/other && git log -1 --format='%an <%ae> %cn'`
	// A deletion takes no objects. Servers unpack the list of references as any body.
	hidden := `line="$(git -C c rev-parse HEAD) 0000000000000000000000000000000000000000 refs/heads/other" &&
printf '%04x%s0000' $((${#line} + 4)) "$line" | gzip | curl -sS --data-binary @- -H 'Content-Encoding: gzip' \
-H 'Content-Type: application/x-git-receive-pack-request' https://repo.test/git/tool.git/git-receive-pack`
	got, r := x.programs(o,
		step{"work", []string{"sh", "-c", work}},
		step{"another repository", []string{"git", "clone", "-q", "https://repo.test/git/another.git"}},
		step{"echo", []string{"curl", "-sS", "-H", "Authorization: Basic mine", "https://repo.test/git/tool.git/echo"}},
		step{"environment", []string{"sh", "-c", "env; cat ~/.gitconfig c/.git/config"}},
		step{"hidden", []string{"sh", "-c", hidden}},
	)
	r.want(t, 0, "exited")
	if w := got["work"]; w.Exit != 0 || strings.TrimSpace(w.Out) != "The agents <agents@example.com> The agents" {
		t.Errorf("work: exit %d, %q\n%s", w.Exit, w.Out, w.Err)
	}
	if a := got["another repository"]; a.Exit == 0 || !strings.Contains(a.Err, "403") {
		t.Errorf("another repository: exit %d, %q\n%s", a.Exit, a.Out, a.Err)
	}
	if e := got["echo"]; !strings.Contains(e.Out, "you sent <") || !strings.Contains(e.Out, "****") {
		t.Errorf("echo: %q\n%s", e.Out, e.Err)
	}
	for name, o := range got {
		if strings.Contains(o.Out+o.Err, x.secret) {
			t.Errorf("%s has the token: %q %q", name, o.Out, o.Err)
		}
	}
	if heads := git("for-each-ref", "--format=%(refname) %(subject)"); !strings.Contains(heads, "refs/heads/main two") || strings.Contains(heads, "other") {
		t.Errorf("the repository has %q; deleted: %+v", heads, got["hidden"])
	}
	for want, times := range map[string]int{"push of 2 refs to /git/tool.git": 1, "push to /git/tool.git that can't be read": 1} {
		for _, e := range calls(x.n.audit("node"), "egress") {
			if strings.HasSuffix(fmt.Sprint(e.Data["detail"]), want) {
				times--
			}
		}
		if times != 0 {
			t.Errorf("%d too few records of a %s", times, want)
		}
	}
}
