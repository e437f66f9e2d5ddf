// SPDX-License-Identifier: Apache-2.0
const fs = require("fs"), os = require("os"), path = require("path"), crypto = require("crypto"), zlib = require("zlib");
const { Worker } = require("worker_threads");

(async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "n-"));
  await fs.promises.writeFile(path.join(dir, "f"), zlib.gzipSync("packed"));
  const text = zlib.gunzipSync(await fs.promises.readFile(path.join(dir, "f"))).toString();
  const hash = crypto.createHash("sha256").update("agentrun").digest("hex").slice(0, 12);
  const worker = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
  const answer = await new Promise((done, fail) => worker.on("message", done).on("error", fail));
  console.log("hello", text, hash, answer, process.version.startsWith("v"));
})();
