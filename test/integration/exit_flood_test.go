// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// everyRefusal asks for all that a gateway refuses, from some threads, as fast as it is answered, and counts the answers by code.
const everyRefusal = `
import collections, ctypes, json, os, socket, sys, threading, time
seconds = float(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
end, lock, got = time.time() + seconds, threading.Lock(), collections.Counter()

def post(path, body, more=""):
    b = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:7600\r\nContent-Type: application/json\r\n{more}Content-Length: {len(b)}\r\n\r\n").encode() + b

def mcp(i):
    return post("/mcp", {"jsonrpc": "2.0", "id": i, "method": "tools/call", "params": {"name": f"m{i}", "arguments": {}}},
        "Accept: application/json, text/event-stream\r\n")

kinds = [
    lambda i: post(f"/internal/tools/t{i}", {"args": {}}),
    lambda i: post("/internal/tools/math", {"args": {"nonsense": i}}),
    lambda i: post("/internal/router/dispatch", {"intent": f"do thing {i}"}),
    lambda i: post("/v1/chat/completions", {"model": f"m{i}", "messages": [{"role": "user", "content": "x"}]}),
    lambda i: post("/internal/elevation", {"target_ring": 2, "ttl_seconds": 60, "reason": f"r{i}"}),
    lambda i: post(f"/internal/wallet/{i}", {}),
    lambda i: post(f"/nowhere/{i}", {}),
    mcp,
]

def answer(f):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        c = f.readline()
        if not c: return None
        head += c
    n, chunked = 0, False
    for l in head.lower().split(b"\r\n"):
        if l.startswith(b"content-length:"): n = int(l[15:])
        chunked = chunked or l.startswith(b"transfer-encoding:")
    body = f.read(n)
    while chunked:
        size = int(f.readline(), 16); body += f.read(size); f.readline()
        if size == 0: break
    return body

def tools(k):
    i, s = 0, None
    mine = collections.Counter()
    while time.time() < end:
        try:
            if s is None:
                s = socket.create_connection(("127.0.0.1", 7600), timeout=20); f = s.makefile("rb")
            burst = 16
            s.sendall(b"".join(kinds[(k + j) % len(kinds)](k * 1000000 + i + j) for j in range(burst)))
            i += burst
            for _ in range(burst):
                b = answer(f)
                if b is None: raise OSError
                code = b.split(b'"code":"', 1)
                code = code if len(code) == 2 else b.split(b'\\"code\\":\\"', 1)
                mine[code[1].split(b'"')[0].strip(b"\\").decode() if len(code) == 2 else "none"] += 1
        except OSError:
            s = None; mine["broken"] += 1
    with lock: got.update(mine)

def egress():
    i = 0
    while time.time() < end:
        try:
            s = socket.create_connection(("127.0.0.1", 7601), timeout=20)
            s.sendall(b"GET http://h%d.attacker.test/ HTTP/1.1\r\nHost: h%d.attacker.test\r\n\r\n" % (i, i)); i += 1
            if b"agentrun-denied" in s.recv(4096).lower():
                with lock: got["egress"] += 1
            s.close()
        except OSError: pass

def syscalls():
    i = 0
    while time.time() < end:
        libc.syscall(165, b"none", b"/tmp", b"none", 0, 0); libc.syscall(16, 0, 0x5400 + i % 4096, 0); i += 1
        with lock: got["syscalls"] += 1

threads = [threading.Thread(target=tools, args=(k,)) for k in range(8)] + [threading.Thread(target=egress), threading.Thread(target=syscalls)]
for t in threads: t.start()
for t in threads: t.join()
json.dump(got, sys.stdout)`

// M2 of the attack round: a ring 3 agent that is refused again and again, under ever new names, leaves an audit that is bounded by
// time, a run log and a state that are small, and each refusal counted.
func TestM18RefusalsFillNoDisk(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	for _, profile := range []string{"ring3", "ring2"} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel() // it mostly waits
			x := newExit(t)
			x.file("flood.py", everyRefusal)
			before, size := x.n.audit("node"), folderSize(t, filepath.Join(x.n.dir, "audit"))
			r := x.run(x.opts(profile), "python3", "flood.py", "15")
			r.want(t, 0, "exited")
			var told map[string]int64
			if err := json.Unmarshal([]byte(r.stdout), &told); err != nil {
				t.Fatalf("%v: %.500s %.500s", err, r.stdout, r.stderr)
			}
			grown := folderSize(t, filepath.Join(x.n.dir, "audit")) - size
			all := x.n.audit("node")[len(before):]
			t.Logf("the agent saw %v; %d entries, %d bytes", told, len(all), grown)
			var answers int64
			for code, n := range told {
				if code != "none" && code != "syscalls" {
					answers += n
				}
			}
			if answers < 500 || told["egress"] == 0 || told["rate_limited"] == 0 || told["route_forbidden"] == 0 {
				t.Fatalf("no flood: %v", told)
			}
			if most := int64(60 << 10); grown > most {
				t.Errorf("the audit grew by %d bytes, want at most %d", grown, most)
			}
			if most := int64(256 << 10); folderSize(t, filepath.Join(x.n.dir, "runs")) > most {
				t.Errorf("the run's log has %d bytes, want at most %d", folderSize(t, filepath.Join(x.n.dir, "runs")), most)
			}
			counted := map[string]int64{}
			for _, e := range all {
				n, _ := e.Data["count"].(float64)
				code, _ := e.Data["code"].(string)
				switch {
				case e.Kind == "egress":
					code = "egress"
				case e.Kind == "refusal":
					code = "syscalls"
				case e.Kind == "rate_limit":
					code = "rate_limited"
				}
				counted[code] += int64(n)
			}
			for _, code := range []string{"rate_limited", "tool_unknown", "bad_arguments", "route_forbidden", "egress"} {
				if counted[code] < told[code] {
					t.Errorf("%s: %d are on record, the agent saw %d", code, counted[code], told[code])
				}
			}
			if counted["syscalls"] < 2*told["syscalls"]-1000 { // ioctls that the ring allows are none
				t.Logf("%d refused system calls are on record of about %d", counted["syscalls"], 2*told["syscalls"])
			}
			for _, e := range all {
				if name, _ := e.Data["name"].(string); strings.HasPrefix(name, "t") && e.Data["count"].(float64) > 1 && name != "tool" {
					t.Errorf("a record of many names one of them: %v", e.Data)
				}
			}
		})
	}
}

const lost = `
import collections, http.client, json, time
def many(path, body):
    got = collections.Counter()
    c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=20)
    for _ in range(60):
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse(); b = json.loads(r.read())
        got[b["error"]["code"]] += 1
    time.sleep(2.5) # until the bucket is full again
    return got
print(json.dumps({
    "model": many("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}),
    "embedding": many("/v1/embeddings", {"model": "nobody", "input": "x"}),
    "body": many("/internal/llm/chat", {"what": "is this"}),
    "intent": many("/internal/router/dispatch", {"intent": "fly to the moon"}),
    "route": many("/internal/nowhere", {}),
}))`

// L8 of the attack round: what leads nowhere is held by the ring's rate, and on record, gathered.
func TestH16WhatLeadsNowhereIsPaced(t *testing.T) {
	t.Parallel() // it mostly waits
	needProgram(t, "python3")
	x := newExit(t)
	x.file("lost.py", lost)
	r := x.run(x.opts("ring3"), "python3", "lost.py")
	r.want(t, 0, "exited")
	var got map[string]map[string]int
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v: %.500s %.500s", err, r.stdout, r.stderr)
	}
	counted := map[string]int{}
	all := x.n.audit("node")
	for _, e := range all {
		switch e.Kind {
		case "tool_call":
			counted[e.Data["code"].(string)] += int(e.Data["count"].(float64))
		case "rate_limit":
			counted["rate_limited"] += int(e.Data["count"].(float64))
		}
	}
	seen := map[string]int{}
	for what, code := range map[string]string{"model": "not_found", "embedding": "not_found", "body": "bad_request", "intent": "tool_unknown", "route": "not_found"} {
		if got[what][code] == 0 || got[what]["rate_limited"] == 0 {
			t.Errorf("%s: got %v, want %s and, as it goes on, rate_limited", what, got[what], code)
		}
		for c, n := range got[what] {
			seen[c] += n
		}
	}
	for code, n := range seen {
		if counted[code] != n {
			t.Errorf("%s: %d are on record, the agent saw %d", code, counted[code], n)
		}
	}
	if len(all) > 80 {
		t.Errorf("%d entries for 300 requests", len(all))
	}
}

// refusedByMCP counts how many calls of no tool are answered in 5 s, one by one, and then sends very many in a batch.
const refusedByMCP = `
import http.client, json, threading, time
end, lock, got = time.time() + 5, threading.Lock(), {"errors": 0}
call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "none", "arguments": {}}}
def post(body):
    c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=60)
    c.request("POST", "/mcp", json.dumps(body), {"Host": "127.0.0.1:7600", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"})
    r = c.getresponse(); text = r.read(); c.close()
    return r.status, text
def many():
    while time.time() < end:
        status, text = post(call)
        with lock: got["errors"] += text.count(b'"isError":true')
all = [threading.Thread(target=many) for _ in range(4)]
for t in all: t.start()
for t in all: t.join()
status, text = post([call] * 2000)
got["batch"], got["of it"] = status, text.count(b'"isError":true')
print(json.dumps(got))
`

// M-7, H-16: what is refused over MCP waits as it does over HTTP, where the status tells, and one request has one message: the supervisor
// decides each and puts it on record, in no limit of the run's.
func TestM7RefusalsOverMCPArePaced(t *testing.T) {
	needProgram(t, "python3")
	x := newExit(t)
	x.file("mcp.py", refusedByMCP)
	r := x.run(x.opts("ring3"), "python3", "mcp.py")
	r.want(t, 0, "exited")
	var got map[string]int
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v: %.500s %.500s", err, r.stdout, r.stderr)
	}
	if n := got["errors"]; n < 20 || n > 40+8*20 { // 40 at once, and 20 a second
		t.Errorf("%d refusals in 5 s, want some 140", n)
	}
	if got["batch"] != 400 || got["of it"] != 0 {
		t.Errorf("a batch: got %v, want it refused", got)
	}
}

func folderSize(t testing.TB, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		n += i.Size()
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return n
}
