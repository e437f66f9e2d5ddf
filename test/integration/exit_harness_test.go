// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"agentrun/test/exit"
)

// exit is what a test of the exit stands on: an outside, a node, a gateway.yaml and a folder of the agent's.
type exit struct {
	t        *testing.T
	w        *exittest.World
	n        node
	settings settings
	ws       string
	secret   string // the text of the secret "key"

	resolver *exittest.Resolver // the host's, which knows nothing beyond /etc/hosts unless it is told
}

// prepare is prepare on a host of its own, whose /etc/hosts knows the world's names.
func (x *exit) prepare(o opts, argv ...string) *call {
	x.t.Helper()
	c := prepare(x.t, o, argv...)
	onOtherHost(x.t, c, x.w.HostsFile(), x.resolver.File())
	return c
}

// run is run, likewise.
func (x *exit) run(o opts, argv ...string) result {
	x.t.Helper()
	c := x.prepare(o, argv...)
	c.started = time.Now()
	if err := c.Start(); err != nil {
		x.t.Fatal(err)
	}
	return c.finish(x.t)
}

func newExit(t *testing.T) *exit {
	t.Helper()
	n := newNode(t)
	dir := t.TempDir()
	w, err := exittest.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	resolver, err := exittest.NewResolver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resolver.Close() })
	x := &exit{t: t, w: w, n: n, settings: settings{}, ws: workspace(t), resolver: resolver,
		secret: "sk-test-0123456789abcdefghijklmnop"}
	x.settings.secret("key", write(t, filepath.Join(dir, "key"), x.secret, 0o600))
	return x
}

func (x *exit) host(name string, h http.Handler) *exittest.Host {
	x.t.Helper()
	host, err := x.w.Host(name, h)
	if err != nil {
		x.t.Fatal(err)
	}
	return host
}

func (x *exit) hostile(name string) *exittest.Host {
	x.t.Helper()
	host, err := x.w.Raw(name, exittest.Hostile)
	if err != nil {
		x.t.Fatal(err)
	}
	return host
}

// file puts a file into the agent's folder.
func (x *exit) file(name, content string) {
	x.t.Helper()
	write(x.t, filepath.Join(x.ws, name), content, 0o644)
}

func (x *exit) json(name string, v any) {
	x.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		x.t.Fatal(err)
	}
	x.file(name, string(b))
}

// opts writes gateway.yaml as it is now. The CA is made known by the variables that programs look at.
func (x *exit) opts(profile string, flags ...string) opts {
	x.t.Helper()
	x.settings.egress(x.w)
	b, err := yaml.Marshal(x.settings)
	if err != nil {
		x.t.Fatal(err)
	}
	file := write(x.t, filepath.Join(x.t.TempDir(), "gateway.yaml"), string(b), 0o600)
	all := []string{"--gateway", file, "--workspace", x.ws, "--ro-bind", x.w.CAFile + ":/ca.pem", "--memory", "512M"}
	for _, v := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"} {
		all = append(all, "--env", v+"=/ca.pem")
	}
	return opts{profile: profile, state: x.n.dir, flags: append(all, flags...)}
}

// outcome is how one program in a sandbox ended.
type outcome struct {
	Name string `json:"name"`
	Exit int    `json:"exit"`
	Out  string `json:"out"`
	Err  string `json:"err"`
}

type step struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
}

const driver = `
import json, subprocess
for s in json.load(open("steps.json")):
    r = {"name": s["name"]}
    try:
        p = subprocess.run(s["argv"], capture_output=True, timeout=40, stdin=subprocess.DEVNULL)
        r.update(exit=p.returncode, out=p.stdout[:8192].decode("latin-1"), err=p.stderr[-4096:].decode("latin-1"))
    except (OSError, subprocess.TimeoutExpired) as e:
        r.update(exit=-1, out="", err=str(e))
    print(json.dumps(r), flush=True)
`

// programs runs programs one after the other in one sandbox of ring 2 or 1.
func (x *exit) programs(o opts, steps ...step) (map[string]outcome, result) {
	x.t.Helper()
	x.json("steps.json", steps)
	x.file("driver.py", driver)
	r := x.run(o, "python3", "driver.py")
	return outcomes(x.t, r, func(o outcome) string { return o.Name }), r
}

// outcomes reads an answer a line.
func outcomes[T any](t *testing.T, r result, name func(T) string) map[string]T {
	t.Helper()
	m := map[string]T{}
	for line := range strings.Lines(r.stdout) {
		var o T
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Errorf("the agent says %q: %v", line, err)
			continue
		}
		m[name(o)] = o
	}
	if len(m) == 0 {
		t.Fatalf("no answers; exit %d, state %s (%s)\nstdout: %s\nstderr: %s", r.exit, r.status.State, r.status.Reason, r.stdout, r.stderr)
	}
	return m
}

// exchange is bytes that an agent sends. A name in To is looked up inside.
type exchange struct {
	Name string   `json:"name"`
	Net  string   `json:"net"` // tcp if empty, udp, unix
	To   string   `json:"to"`
	TLS  *string  `json:"tls,omitempty"` // the name in the hello; after the first reply if there are several sends
	Send []string `json:"send"`          // each but the last waits for some reply
}

type reply struct {
	Name  string `json:"name"`
	Reply string `json:"reply"`
	Error string `json:"error"`
}

const rawClient = `
import json, socket, ssl
def connect(e):
    net = e["net"] or "tcp"
    if net == "unix":
        s = socket.socket(socket.AF_UNIX); s.settimeout(15); s.connect(e["to"]); return s
    host, port = e["to"].rsplit(":", 1)
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM if net == "udp" else socket.SOCK_STREAM)
    s.settimeout(15)
    s.connect((host, int(port)))
    return s
def secure(s, name):
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    return c.wrap_socket(s, server_hostname=name or None)
def say(e):
    got = b""
    s = connect(e)
    try:
        if e.get("tls") is not None and len(e["send"]) == 1:
            s = secure(s, e["tls"])
        for i, text in enumerate(e["send"]):
            s.sendall(text.encode("latin-1"))
            if i + 1 < len(e["send"]):
                got += s.recv(65536)
                if e.get("tls") is not None and i + 2 == len(e["send"]):
                    s = secure(s, e["tls"])
        s.settimeout(4)
        while len(got) < 1 << 16:
            b = s.recv(65536)
            if not b: break
            got += b
            if e["net"] == "udp": break
    except OSError as err:
        return got, type(err).__name__ + " " + str(err)
    finally:
        s.close()
    return got, ""
def told(e):
    try:
        got, err = say(e)
    except OSError as x:
        got, err = b"", type(x).__name__ + " " + str(x)
    return {"name": e["name"], "reply": got.decode("latin-1"), "error": err}
from concurrent.futures import ThreadPoolExecutor
todo = json.load(open("exchanges.json"))
tools = [e for e in todo if e["to"].endswith(":7600") or e["net"] == "unix"] # one after the other: their rate is limited
for e in tools:
    print(json.dumps(told(e)), flush=True)
with ThreadPoolExecutor(16) as pool: # many wait for an end that doesn't come
    for answer in pool.map(told, [e for e in todo if e not in tools]):
        print(json.dumps(answer), flush=True)
`

// raw sends bytes from one sandbox, each exchange on a connection of its own.
func (x *exit) raw(o opts, exchanges ...exchange) (map[string]reply, result) {
	x.t.Helper()
	numbered := slices.Clone(exchanges)
	for i, e := range exchanges {
		numbered[i].Name = strconv.Itoa(i)
		numbered[i].Send = nil
		for _, s := range e.Send {
			numbered[i].Send = append(numbered[i].Send, latin1(s))
		}
	}
	x.json("exchanges.json", numbered)
	x.file("raw.py", rawClient)
	r := x.run(o, "python3", "raw.py")
	byName := map[string]reply{}
	for i, a := range outcomes(x.t, r, func(r reply) string { return r.Name }) {
		n, err := strconv.Atoi(i)
		if err != nil || n < 0 || n >= len(exchanges) {
			x.t.Fatalf("an answer to no question: %q", i)
		}
		byName[exchanges[n].Name] = a
	}
	if len(byName) != len(exchanges) {
		x.t.Errorf("%d answers to %d exchanges; exit %d, state %s (%s)\nstderr: %s", len(byName), len(exchanges), r.exit, r.status.State, r.status.Reason, r.stderr)
	}
	return byName, r
}

// latin1 makes a character of each byte, since JSON has no bytes.
func latin1(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// quiet fails the test if anything has reached the host.
func quiet(t *testing.T, h *exittest.Host) {
	t.Helper()
	if n := h.Connections(); n != 0 {
		t.Errorf("%d connections have reached %s: hellos %q, visits %+v", n, h.Name, h.Hellos(), h.Visits())
	}
}

// post is a request to the tool gateway, for raw.
func post(path, body string, headers ...string) []string {
	return []string{fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s",
		path, toolsAt, len(body), strings.Join(append(headers, ""), "\r\n"), body)}
}

const math42 = `{"args":{"expression":"6*7"}}`

var npmOnce = sync.OnceValues(installNPM)

// needNPM is need for the clients of test/npm. It returns the flags that show them to an agent as /clients/node_modules.
func needNPM(t *testing.T) []string {
	t.Helper()
	needProgram(t, "node")
	dir, err := npmOnce()
	if err != nil {
		unmet(t, "npm packages of test/npm: "+err.Error())
	}
	return []string{"--ro-bind", dir + ":/clients"}
}

// installNPM installs what the lock file says, once for each lock file. AGENTRUN_TEST_NPM names a folder where somebody did.
func installNPM() (string, error) {
	if dir := os.Getenv("AGENTRUN_TEST_NPM"); dir != "" {
		_, err := os.Stat(filepath.Join(dir, "node_modules"))
		return dir, err
	}
	source, err := filepath.Abs(filepath.Join("..", "npm"))
	if err != nil {
		return "", err
	}
	lock, err := os.ReadFile(filepath.Join(source, "package-lock.json"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	dir, err := filepath.Abs(filepath.Join("..", "out", "npm", hex.EncodeToString(sum[:8])))
	if err != nil {
		return "", err
	}
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		b, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %.400s", err, out)
	}
	return dir, os.WriteFile(done, nil, 0o644)
}

// codes are the reason codes of records, in order.
func codes(records []entry) []string {
	var all []string
	for _, e := range records {
		code, _ := e.Data["code"].(string)
		all = append(all, code)
	}
	return all
}

// once fails the test unless exactly one of the records has the code.
func once(t *testing.T, records []entry, code string) {
	t.Helper()
	if got := codes(records); len(slices.DeleteFunc(slices.Clone(got), func(c string) bool { return c != code })) != 1 {
		t.Errorf("records: got %v, want %s exactly once", got, code)
	}
}
