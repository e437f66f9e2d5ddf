// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

func jsonNumber(n int64) string { return strconv.FormatInt(n, 10) }

// Ordinary programs run in ring 2: what an agent brings along must work, or
// nobody will use the sandbox. Each prints one word at the end.
func TestPrograms(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	for _, tt := range []struct {
		name, program, file, content string
		profiles                     []string
	}{
		{"python", "python3", "agent.py", `
import asyncio, hashlib, json, mmap, os, select, socket, sqlite3, ssl, subprocess, tempfile, threading
done = []
threads = [threading.Thread(target=lambda: done.append(1)) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(done) == 8
assert ssl.create_default_context() and hashlib.sha256(b"x").hexdigest()
with tempfile.NamedTemporaryFile() as f:
    assert f.name.startswith("/tmp/"); f.write(b"x"); f.flush()
    mmap.mmap(f.fileno(), 1)
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    r, w = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await r.read() == b""
asyncio.run(main())
assert sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
assert subprocess.run(["echo", "x"], capture_output=True).stdout == b"x\n"
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as p:
    assert p.map(abs, [-1, -2]) == [1, 2]
open("made-by-python", "w").write("x")
print("fine")`, []string{"ring1", "ring2"}},
		{"python in ring 3", "python3", "agent.py", `
import asyncio, json, os, ssl, tempfile, threading, subprocess, socket
t = threading.Thread(target=lambda: None); t.start(); t.join()
with tempfile.TemporaryFile() as f: f.write(b"x")
async def main(): await asyncio.sleep(0)
asyncio.run(main())
for what in (lambda: subprocess.run(["true"]), lambda: open("x", "w"), lambda: os.fork(), lambda: os.system("true") == 0 or os.fork()):
    try: what()
    except OSError: continue
    raise SystemExit("it worked")
print("fine")`, []string{"ring3"}},
		{"python strict", "python3", "agent.py", `
import json, math, re, threading
t = threading.Thread(target=lambda: None); t.start(); t.join()
import socket
try: socket.socket()
except OSError: print("fine")`, []string{"strict"}},
		{"node", "node", "agent.js", `
const fs = require("fs"), cp = require("child_process"), { Worker } = require("worker_threads"), http = require("http"), crypto = require("crypto");
fs.writeFileSync("made-by-node", "x");
crypto.createHash("sha256").update("x").digest("hex");
const out = cp.execFileSync("echo", ["x"]).toString();
new Worker("require('worker_threads').parentPort.postMessage(1)", { eval: true }).on("message", () => {
  const s = http.createServer((q, a) => a.end("hi")).listen(0, "127.0.0.1", () =>
    http.get({ port: s.address().port, host: "127.0.0.1" }, (r) => { r.resume(); s.close(); console.log(out === "x\n" ? "fine" : "bad"); }));
});`, []string{"ring1", "ring2"}},
		{"node in ring 3", "node", "agent.js", `
const fs = require("fs"), os = require("os"), cp = require("child_process");
fs.writeFileSync(os.tmpdir() + "/x", "x");
let refused = 0;
try { cp.execFileSync("echo", ["x"]); } catch (e) { refused++; }
try { fs.writeFileSync("x", "x"); } catch (e) { refused++; }
setTimeout(() => console.log(refused === 2 ? "fine" : "bad"), 1);`, []string{"ring3"}},
		{"bash", "bash", "agent.sh", `
set -euo pipefail
x=$(echo a b c | tr ' ' '\n' | sort -r | head -1)
[ "$x" = c ]
cat <<< "here" > here-string
diff <(echo 1) <(echo 1)
(sleep 0.01 & wait)
trap 'echo fine' EXIT
mkfifo fifo; echo x > fifo & read -r y < fifo; [ "$y" = x ]; wait
`, []string{"ring1", "ring2"}},
		{"git", "git", "agent.sh", `
set -e
mkdir repo && cd repo # a repository of the workspace itself is for the host to make (protected paths)
git init -q . && git config user.email a@b && git config user.name a
echo x > f && git add f && git commit -q -m one && git branch b && git checkout -q b && echo y >> f && git commit -qam two
git clone -q . clone && git -C clone log --oneline | wc -l | grep -q 2 && git gc -q && git fsck 2>&1
git diff --stat HEAD~1 > /dev/null && echo fine`, []string{"ring1", "ring2"}},
	} {
		for _, profile := range tt.profiles {
			t.Run(tt.name+" "+profile, func(t *testing.T) {
				needProgram(t, tt.program)
				ws := workspace(t)
				if tt.program == "git" || tt.program == "bash" {
					tt.content = "#!/bin/bash\n" + tt.content
				}
				write(t, filepath.Join(ws, tt.file), strings.TrimLeft(tt.content, "\n"), 0o755)
				argv := []string{tt.file}
				if strings.HasSuffix(tt.file, ".py") || strings.HasSuffix(tt.file, ".js") {
					os.Chmod(filepath.Join(ws, tt.file), 0o644)
				}
				o := opts{profile: profile, flags: []string{"--workspace", ws}}
				if profile != "ring1" && tt.program == "node" {
					o.flags = append(o.flags, "--memory", "512M")
				}
				r := run(t, o, argv...)
				r.want(t, 0, "exited")
				if !strings.HasSuffix(strings.TrimSpace(r.stdout), "fine") {
					t.Errorf("got %q\nstderr: %s\nrefused: %v", r.stdout, r.stderr, r.status.Refused)
				}
				if strings.HasSuffix(tt.name, tt.program) && len(r.status.Refused) > 0 {
					t.Errorf("an ordinary program raises alarms: refused %v", r.status.Refused)
				}
			})
		}
	}
}

// A Go program: this very file, started again.
func TestGoProgram(t *testing.T) {
	needSandbox(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range []string{"ring1", "ring2"} {
		r := run(t, opts{profile: profile, flags: []string{"--ro-bind", self + ":/tiny", "--memory", "1G"}}, "/tiny", "tiny-go-program")
		r.want(t, 0, "exited")
		if !strings.Contains(r.stdout, "fine") {
			t.Errorf("%s: got %q\nstderr: %s", profile, r.stdout, r.stderr)
		}
		delete(r.status.Refused, "seccomp") // a library in this very file asks what the kernel has when it is loaded
		if len(r.status.Refused) > 0 {
			t.Errorf("%s: an ordinary program raises alarms: refused %v", profile, r.status.Refused)
		}
	}
}

// tinyGoProgram runs inside: goroutines, files, a loopback connection, a child.
func tinyGoProgram() int {
	err := func() error {
		done := make(chan error, 16)
		for range cap(done) {
			go func() {
				f, err := os.CreateTemp("", "x")
				if err == nil {
					err = f.Close()
				}
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				return err
			}
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		c.Close()
		out, err := exec.Command("/probe", "id").Output()
		if err != nil {
			return fmt.Errorf("child: %w", err)
		}
		if !strings.Contains(string(out), "uid=1000") {
			return fmt.Errorf("child says %s", out)
		}
		return nil
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("fine")
	return 0
}
