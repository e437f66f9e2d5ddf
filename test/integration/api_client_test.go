// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// documentClient makes a client from the API's own description and does with it all that it has, but for attach, exec and copies, which are no HTTP any more.
// Each answer and each refusal is held against the schema that the description promises for it.
const documentClient = `
const { OpenAPIClientAxios } = require("openapi-client-axios"), Ajv = require("ajv/dist/2020").default, axios = require("axios");
const socketPath = process.argv[1], wrong = [], said = {};
async function main() {
  const { data: definition } = await axios.get("http://localhost/v1/openapi.json", { socketPath });
  const api = new OpenAPIClientAxios({ definition, axiosConfigDefaults: { socketPath, validateStatus: () => true } });
  const client = await api.init(), ajv = new Ajv({ strict: false, validateFormats: false });
  const operations = Object.fromEntries(api.getOperations().map((o) => [o.operationId, o]));
  const at = (r) => r && r.$ref ? definition.components.responses[r.$ref.split("/").pop()] : r;
  async function call(name, params, body, config) {
    const r = await client[name](params, body, config), { responses } = operations[name];
    said[name] = r.status;
    const content = at(responses[r.status] ?? responses.default).content ?? {}, schema = content["application/json"]?.schema;
    if (schema) {
      const fits = ajv.compile({ ...schema, components: definition.components });
      if (!fits(r.data)) wrong.push([name, r.status, r.data, fits.errors]);
    }
    return r.data;
  }
  await call("version"); await call("openapi");
  const run = await call("start", null, { command: ["/usr/bin/sleep", "60"], options: { name: "w", agent: "planner", "no-gateway": true } });
  const id = { id: run.id };
  await call("sandboxes"); await call("inspect", id);
  await call("freeze", id); await call("thaw", id); await call("pause", id); await call("inspect", id); await call("resume", id); await call("signal", id, { signal: 28 });
  await call("limits", id, { pids: 32 }); await call("extend", id, { time_ns: 1e9, reason: "tried" });
  await call("files", id, { path: "/" });
  await call("publish", id, { port: 8000 }); await call("ports", id); await call("unpublish", id, { port: 8000 });
  const changes = await client.watch(id, { path: "/tmp" }, { responseType: "stream" });
  const change = await new Promise((done) => changes.data.once("data", (d) => done(JSON.parse(String(d).split("\n")[0].slice(5)))));
  const says = ajv.compile({ $ref: "#/components/schemas/FileChange", components: definition.components });
  said.watch = says(change) ? changes.status : says.errors; changes.data.destroy();
  await call("score", { id: "planner" }, { score: 0.7 });
  await call("elevate", id, { target_ring: 2, reason: "tried", ttl_ns: 60e9 }); await call("revoke", id, {});
  await call("output", id); await call("quarantineRun", id, { reason: "tried" });
  await call("agents"); await call("agent", { id: "planner" });
  await call("quarantine", { id: "other" }, { reason: "tried" }); await call("release", { id: "other" }, { attestation: "nonsense" });
  const { data: stream } = await client.events(null, null, { responseType: "stream" });
  const first = await new Promise((done) => stream.once("data", done));
  const event = JSON.parse(String(first).split("\n").find((l) => l.startsWith("data:")).slice(5));
  const fits = ajv.compile({ $ref: "#/components/schemas/Event", components: definition.components });
  said.events = fits(event) ? 200 : fits.errors; stream.destroy();
  const end = call("wait", id);
  await call("kill", id, { reason: "manual" }); await end;
  await call("killAll", null, { selector: { agent: "nobody" } });
  const none = { id: "k3x7q2m5t9w1a8c4" };
  await call("approvals"); await call("approval", none); await call("approve", none, {}); await call("deny", none, {});
  await call("calls"); await call("undoCall", none, {});
  await call("grant", null, { agent_id: "planner", tool: "math", for_ns: 60e9 });
  await call("revokeGrant", none, {});
  const key = await call("issueKey", null, { agent_id: "planner", may: ["tool.math"], ttl_ns: 60e9 });
  await call("keys"); await call("revokeKey", { id: key.key_id }, {});
  await call("challenges"); await call("showChallenge", none, {}); await call("verifyChallenge", none, { code: "AAAA-AAAA" });
  await call("pendingConfirmations"); await call("confirm", null, { token: "none" });
  await call("blocks"); await call("unblock", null, { agent: "planner", reason: "tried" });
  await call("createKept", null, { name: "dev", options: { ring: 3, "no-gateway": true } });
  await call("kept"); await call("startKept", { id: "dev" }, {}); await call("keptOne", { id: "dev" }); await call("stopKept", { id: "dev" }, { grace_ns: 0 });
  await call("snapshotKept", { id: "dev" }, { name: "one" }); await call("forkKept", { id: "dev" }, { to: "fork", snapshot: "one" }); await call("removeKept", { id: "fork" }, null, { data: {} });
  await call("rollbackKept", { id: "dev" }, { name: "one" }); await call("dropKeptSnapshot", { id: "dev" }, null, { data: { name: "one" } });
  await call("renameKept", { id: "dev" }, { to: "other" }); await call("keepKept", { id: "other" }, { for_ns: 3600e9 }); await call("removeKept", { id: "other" }, null, { data: { force: false } });
  await call("images"); await call("pullImage", null, { name: "127.0.0.1:1/none:1" }); await call("removeImage", null, null, { data: { name: "none:1" } });
  await call("metrics");
  console.log(JSON.stringify({ said, wrong, not: Object.keys(operations).filter((o) => !(o in said)) }));
}
main().catch((e) => { console.error(e.stack); process.exit(1); });
`

// M-23: somebody else's client, made from the description alone, does what the API has; each answer is what the description says.
func TestM23ClientFromTheDocument(t *testing.T) {
	needProgram(t, "node")
	npm, err := npmOnce()
	if err != nil {
		unmet(t, "npm packages of test/npm: "+err.Error())
	}
	d := startDaemon(t, "--pool-max", "0")
	cmd := exec.Command("node", "-e", documentClient, filepath.Join(d.run, "control/daemon.sock"))
	cmd.Dir = npm
	var got struct {
		Said  map[string]any
		Wrong []any
		Not   []string
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil || json.Unmarshal(out, &got) != nil {
		t.Fatalf("client: %v, %s%s", err, out, complaint.String())
	}
	for _, w := range got.Wrong {
		t.Errorf("not what the document says: %v", w)
	}
	if diff := cmp.Diff([]string{"attach", "exec", "readFiles", "writeFiles"}, got.Not); diff != "" {
		t.Errorf("operations that were not tried (-want +got):\n%s", diff)
	}
	refused := map[string]any{ // the agent is held when it is to be given a grant; the others are of nothing that there is
		"grant": 403.0, "release": 403.0, "revokeGrant": 404.0, "approval": 404.0, "approve": 404.0, "deny": 404.0, "undoCall": 404.0,
		"showChallenge": 404.0, "verifyChallenge": 404.0, "confirm": 404.0, "unblock": 404.0,
		"pullImage": 400.0, "removeImage": 404.0,
	}
	for _, name := range slices.Sorted(maps.Keys(got.Said)) {
		want, ok := refused[name]
		if !ok {
			want = 200.0
		}
		if got.Said[name] != want {
			t.Errorf("%s: got %v, want %v", name, got.Said[name], want)
		}
	}
}
