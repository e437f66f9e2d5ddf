// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/netns"
	"agentrun/test/exit"
)

// far makes a network namespace with a cable to ours, and gives its address and how to run something in it.
func far(t *testing.T) (netip.Addr, func(func() error) error) {
	t.Helper()
	needProgram(t, "ip")
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	n := os.Getpid()%200 + 20
	here, there := fmt.Sprintf("arhere%d", n), fmt.Sprintf("arfar%d", n)
	ip := func(args ...string) error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := ip("link", "add", here, "type", "veth", "peer", "name", there); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ip("link", "del", here) })
	err = errors.Join(ip("link", "set", there, "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())),
		ip("addr", "add", fmt.Sprintf("10.213.%d.1/30", n), "dev", here), ip("link", "set", here, "up"),
		ns.Do(func() error {
			return errors.Join(ip("addr", "add", fmt.Sprintf("10.213.%d.2/30", n), "dev", there), ip("link", "set", there, "up"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddr(fmt.Sprintf("10.213.%d.2", n)), ns.Do
}

// M-8: git over https from a host in another namespace, whose certificate is of a CA of its own.
func TestM8GitFromAnotherNamespace(t *testing.T) {
	x := newExit(t)
	needProgram(t, "git")
	addr, within := far(t)
	git, err := exittest.Git(t.TempDir(), "tool", "text of the file\n")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/git/", git)
	host, err := x.w.HostWithin("far.test", addr, within, mux)
	if err != nil {
		t.Fatal(err)
	}
	clone := step{"clone", []string{"sh", "-c", "git clone -q https://far.test/git/tool.git c && cat c/README"}}
	got, r := x.programs(x.opts("ring2", "--allow", "far.test"), clone)
	r.want(t, 0, "exited")
	if a := got["clone"]; a.Exit != 0 || a.Out != "text of the file\n" {
		t.Errorf("got %d %q %s", a.Exit, a.Out, a.Err)
	}
	if len(host.Visits()) == 0 {
		t.Error("the far host was never asked")
	}
	visits := len(host.Visits())
	os.RemoveAll(filepath.Join(x.ws, "c"))
	got, r = x.programs(x.opts("ring2", "--allow", "other.test"), clone)
	r.want(t, 0, "exited")
	if a := got["clone"]; a.Exit == 0 || len(host.Visits()) != visits {
		t.Errorf("not on the list: got %d %q, %d more visits", a.Exit, a.Out, len(host.Visits())-visits)
	}
}

const shouter = `
import { McpServer } from "/clients/node_modules/@modelcontextprotocol/sdk/dist/esm/server/mcp.js";
import { StdioServerTransport } from "/clients/node_modules/@modelcontextprotocol/sdk/dist/esm/server/stdio.js";
import { z } from "/clients/node_modules/zod/index.js";
const server = new McpServer({ name: "shouter", version: "1" });
server.registerTool("shout", { description: "shouts", inputSchema: { text: z.string() } },
  async ({ text }) => ({ content: [{ type: "text", text: text.toUpperCase() + "!" }] }));
await server.connect(new StdioServerTransport());`

// M-12: an MCP server that isn't ours, over stdio, in a sandbox of its own: its tools are the agent's tools.
func TestM12MCPServerInASandbox(t *testing.T) {
	x := newExit(t)
	clients := needNPM(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "server.mjs"), shouter, 0o644)
	readable(t, dir)
	x.settings.tool("near", object{
		"kind": "mcp", "description": "a test server", "category": "A", "reversibility": "full", "read_only": true, "timeout": "20s",
		"mcp": object{"command": object{"argv": []string{"/usr/bin/node", "/srv/server.mjs"}, "memory": "512M", "ro_bind": []string{clients[1], dir + ":/srv"}}},
	})
	got, r := x.raw(x.opts("ring3"),
		exchange{Name: "list", To: toolsAt, Send: []string{"GET /internal/tools HTTP/1.1\r\nHost: " + toolsAt + "\r\nConnection: close\r\n\r\n"}},
		exchange{Name: "shout", To: toolsAt, Send: post("/internal/tools/near.shout", `{"args":{"text":"hey"}}`)},
		exchange{Name: "again", To: toolsAt, Send: post("/internal/tools/near.shout", `{"args":{"text":"you"}}`)})
	r.want(t, 0, "exited")
	if !strings.Contains(got["shout"].Reply, "HEY!") || !strings.Contains(got["again"].Reply, "YOU!") {
		t.Errorf("got %.400q and %.400q; list %.300q", got["shout"].Reply, got["again"].Reply, got["list"].Reply)
	}
	var ends int
	for _, e := range x.n.audit("node") {
		if e.Kind == "sandbox_end" {
			ends++
		}
	}
	if ends != 2 {
		t.Errorf("%d runs on record, want 2: the agent's and the server's", ends)
	}
	noAgents(t)
}
