// SPDX-License-Identifier: Apache-2.0
const http = require("http"), fs = require("fs"), cp = require("child_process");

const server = http.createServer((request, answer) => answer.end("from " + request.url));
server.listen(0, "127.0.0.1", async () => {
  const reply = await fetch(`http://127.0.0.1:${server.address().port}/here`);
  console.log(await reply.text());
  server.close();
  console.log(cp.execFileSync("sh", ["-c", "echo child $((1+1))"]).toString().trim());
  const forked = cp.fork(__filename.replace("node_server", "node_child"));
  forked.on("message", (m) => console.log("forked", m)).on("exit", (code) => console.log("exit", code));
  fs.writeFileSync("made-by-node", "x");
});
