// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// api asks a daemon over its control socket, as a program of somebody else's would: by net/http and the document.
func (n *daemonNode) api(t *testing.T, method, path, body string, want int) (answer map[string]any) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.run, "control/daemon.sock"))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(text, &answer) != nil || resp.StatusCode != want {
		t.Fatalf("%s %s %s: got %s %.600s %v, want %d", method, path, body, resp.Status, text, err, want)
	}
	return answer
}

// M-23: a run is started by the API as by exec --detach, with all that exec takes, its agent is held by it, and it ends there.
func TestM23StartByAPI(t *testing.T) {
	d := startDaemon(t, "--pool-max", "0")
	ws := workspace(t)
	write(t, filepath.Join(ws, "mine"), "content", 0o644)
	begin := func(options string, argv ...string) string {
		t.Helper()
		command, err := json.Marshal(argv)
		if err != nil {
			t.Fatal(err)
		}
		said := d.api(t, "POST", "/v1/sandboxes", fmt.Sprintf(
			`{"command":%s,"dir":%q,"environ":["GIVEN=a b","KEPT=x"],"options":%s}`, command, ws, options), 200)
		id, _ := said["id"].(string)
		if len(id) != 16 || said["output"] == "" {
			t.Fatalf("got %v", said)
		}
		return id
	}
	id := begin(`{"name":"worker","agent":"planner","ring":3,"timeout":"30s","memory":"128M","env":["A=1","B=2"],"env-pass":["GIVEN"],
		"workspace":".","best-effort":true,"no-gateway":true}`, "/usr/bin/python3", "-c", `import os, time
print(*(os.environ.get(k) for k in ("A", "B", "GIVEN", "KEPT")), open("mine").read(), sep=",", end="", flush=True)
time.sleep(60)`)
	status := d.api(t, "GET", "/v1/sandboxes/"+id, "", 200)
	limits, _ := status["limits"].(map[string]any)
	if status["name"] != "worker" || status["agent"] != "planner" || status["base_ring"] != 3.0 || limits["memory_bytes"] != 128.0*(1<<20) {
		t.Errorf("got %v", status)
	}
	p := place{t, d.run, d.state}
	eventually(t, 10*time.Second, "its output is there", func() bool {
		return p.do("output", "worker").stdout == "1,2,a b,None,content"
	})
	d.api(t, "POST", "/v1/sandboxes/"+id+"/quarantine", `{"reason":"odd calls"}`, 200)
	if a := d.api(t, "GET", "/v1/agents/planner", "", 200); a["quarantine"] == nil {
		t.Errorf("not held: %v", a)
	}
	refused := d.api(t, "POST", "/v1/sandboxes", `{"command":["true"],"options":{"agent":"planner","no-gateway":true}}`, 403)
	if e, _ := refused["error"].(map[string]any); e["code"] != "quarantined" {
		t.Errorf("a run of a held agent: got %v", refused)
	}
	d.api(t, "POST", "/v1/sandboxes/"+id+"/kill", `{"reason":"manual"}`, 200)
	key := d.api(t, "POST", "/v1/keys", `{"agent_id":"other","may":["agent.run"],"ttl_ns":60000000000}`, 200)
	withKey := fmt.Sprintf(`{"command":["true"],"options":{"agent":"other","no-gateway":true},"environ":["AGENTRUN_KEY=%s"]}`, key["key"])
	for _, code := range []string{"no_role", "key_invalid"} { // the second time it is revoked
		refused := d.api(t, "POST", "/v1/sandboxes", withKey, 403)
		if e, _ := refused["error"].(map[string]any); e["code"] != code {
			t.Errorf("a run with a key: got %v, want %s", refused, code)
		}
		d.api(t, "POST", fmt.Sprintf("/v1/keys/%s/revoke", key["key_id"]), `{}`, 200)
	}

	short := begin(`{"no-gateway":true}`, "/usr/bin/true")
	eventually(t, 10*time.Second, "a short run ends", func() bool { return !strings.Contains(p.do("ps").stdout, short) })

	for body, says := range map[string]string{
		`{"options":{}}`:                                         "command",
		`{"command":[]}`:                                         "command",
		`{"command":["x"],"dir":"here"}`:                         "dir",
		`{"command":["x"],"environ":["x"]}`:                      "environ",
		`{"command":["x"],"options":{"nosuch":1}}`:               "nosuch",
		`{"command":["x"],"options":{"t":true}}`:                 "options",
		`{"command":["x"],"options":{"ring=0 --rootfs":"/"}}`:    "options",
		`{"command":["x"],"options":{"detach":false}}`:           "options",
		`{"command":["x"],"options":{"ring":{"a":1}}}`:           "options.ring",
		`{"command":["x"],"options":{"ring":0}}`:                 "ring 0",
		`{"command":["x"],"options":{"timeout":"1h"}}`:           "--timeout",
		`{"command":["x"],"options":{"cpus":9,"memory":"nope"}}`: "--cpus",
		`{"command":["/nosuch"],"options":{"no-gateway":true}}`:  "no such file",
	} {
		e, _ := d.api(t, "POST", "/v1/sandboxes", body, 400)["error"].(map[string]any)
		if text, _ := e["message"].(string); !strings.Contains(text, says) {
			t.Errorf("%s: got %v, want %q", body, e, says)
		}
	}
	last := begin(`{"no-gateway":true}`, "/usr/bin/sleep", "60")
	d.drain(t) // which ends it
	if b, err := os.ReadFile(d.log); err != nil || strings.Contains(string(b), "panic") {
		t.Errorf("%v: %s", err, b)
	}
	_ = last
}

// A member of the operators' group may kill and hold, and may not start what runs as the daemon's user.
func TestM23OnlyOwnersStart(t *testing.T) {
	needProgram(t, "curl")
	d, as := operatorsDaemon(t, "--max-sandboxes", "1", "--queue-timeout", "200ms")
	if got := as(1, "POST", "/v1/agents/planner/quarantine", `{"reason":"x"}`); !strings.Contains(got, "planner") {
		t.Errorf("an operator's quarantine: got %s", got)
	}
	if got := as(1, "POST", "/v1/sandboxes", `{"command":["true"],"options":{"no-gateway":true}}`); !strings.Contains(got, "forbidden") {
		t.Errorf("an operator's start: got %s", got)
	}
	if got := as(1, "POST", "/v1/keys", `{"agent_id":"planner","may":["agent.run.invoke"],"ttl_ns":60000000000}`); !strings.Contains(got, "forbidden") {
		t.Errorf("an operator's key: got %s", got)
	}
	// A node without room says so as such.
	const long = `{"command":["/usr/bin/sleep","60"],"options":{"no-gateway":true}}`
	d.api(t, "POST", "/v1/sandboxes", long, 200)
	if e, _ := d.api(t, "POST", "/v1/sandboxes", long, 503)["error"].(map[string]any); e["code"] != "busy" {
		t.Errorf("got %v, want busy", e)
	}
	d.drain(t)
}

// M-9: what the configuration demands of each start holds for the API as well, also if it was written after the daemon began.
func TestM9APIStartsByTheConfigurationOfNow(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	d := startDaemon(t, "--pool-max", "0")
	const start = `{"command":["sleep","60"],"options":{"no-gateway":true}}`
	id := d.api(t, "POST", "/v1/sandboxes", start, 200)["id"]
	d.api(t, "POST", fmt.Sprintf("/v1/sandboxes/%v/kill", id), `{}`, 200)
	file := filepath.Join(dir, "agentrun", "config.yaml")
	write(t, file, "keys: required\n", 0o600)
	if said := d.api(t, "POST", "/v1/sandboxes", start, 403); !strings.Contains(fmt.Sprint(said["error"]), "code:key_invalid") {
		t.Errorf("without a key: %v", said)
	}
	write(t, file, "ranges: [{ring: 3, timeout: 10s}]\n", 0o600)
	if said := d.api(t, "POST", "/v1/sandboxes", `{"command":["true"],"options":{"timeout":"11s"}}`, 400); !strings.Contains(fmt.Sprint(said["error"]), "1ms to 10s") {
		t.Errorf("above the range: %v", said)
	}
	write(t, file, "state_dir: /elsewhere\n", 0o600) // the daemon's is a flag's
	id = d.api(t, "POST", "/v1/sandboxes", start, 200)["id"]
	d.api(t, "POST", fmt.Sprintf("/v1/sandboxes/%v/kill", id), `{}`, 200)
}
