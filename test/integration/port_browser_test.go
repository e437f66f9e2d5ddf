// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// M-23: what people look at in a sandbox works in a real browser of the host's, driven by Playwright: a dev server (vite) whose page changes by
// itself when a file inside does, a notebook-like one that runs cells over a web socket and streams what they print, and a browser inside by
// its debugging protocol. None without the token, and all are cut when the run is quarantined.
func TestM23BrowserWorksWithServers(t *testing.T) {
	t.Parallel()
	needProgram(t, "chromium")
	clients := needNPM(t)
	modules := strings.TrimSuffix(clients[1], ":/clients") + "/node_modules"
	p := newPlace(t)
	p.must("agent", "score", "dev", "0.8")
	ws := workspace(t)
	write(t, filepath.Join(ws, "index.html"), `<p id="p">none</p><script type="module">import './main.js'; window.first ??= 'loaded once'</script>`, 0o644)
	write(t, filepath.Join(ws, "main.js"), "import { said } from './said.js'; document.querySelector('#p').innerText = said;\n"+
		"import.meta.hot.accept('./said.js', m => { document.querySelector('#p').innerText = m.said });\n", 0o644)
	write(t, filepath.Join(ws, "said.js"), "export const said = 'one';\n", 0o644)
	write(t, filepath.Join(ws, "vite.config.mjs"), "export default { cacheDir: '/tmp/vite', server: { host: '127.0.0.1', port: 5173, strictPort: true, watch: { usePolling: true, interval: 50 } } };\n", 0o644)
	write(t, filepath.Join(ws, "notebook.cjs"), notebook, 0o644)
	owned(t, ws)
	edited := filepath.Join(t.TempDir(), "said.js")
	write(t, edited, "export const said = 'two';\n", 0o644)
	driver := filepath.Join(t.TempDir(), "driver.cjs")
	write(t, driver, drivesServers, 0o644)

	servers := `node /clients/node_modules/vite/bin/vite.js & node notebook.cjs &
exec chromium --headless=new --no-sandbox --disable-gpu --remote-debugging-port=9222 --user-data-dir=/tmp/profile about:blank`
	p.must(slices.Concat([]string{"exec", "-d", "--name", "dev", "--agent", "dev", "--ring", "2", "--pids", "512", "--timeout", "280s", "--cpu-time", "280s", "--workspace", ws},
		clients, []string{"--", "sh", "-c", servers})...)
	t.Cleanup(func() { p.do("kill", "dev") })
	ports := map[string]portInfo{}
	for name, port := range map[string]string{"vite": "5173", "notebook": "8888", "chromium": "9222"} {
		i := asked[portInfo](p, "port", "publish", "dev", port)
		path := map[string]string{"chromium": "/json/version"}[name]
		eventually(t, hang(), name+" answers", func() bool { status, _, _ := i.get(t, path, i.Token); return status == 200 })
		if status, text, _ := i.get(t, path, ""); status != 401 {
			t.Errorf("%s without the token: %d %.200s", name, status, text)
		}
		ports[name] = i
	}

	asks, err := json.Marshal(map[string]any{"modules": modules, "ports": ports})
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", driver, string(asks))
	var stderr strings.Builder
	node.Stderr = &stderr
	stdout, err := node.StdoutPipe()
	if err == nil {
		err = node.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			_ = node.Process.Kill()
			t.Fatalf("the driver says %q, want %q\n%s", lines.Text(), want, stderr.String())
		}
	}
	says("vite: one")
	p.must("cp", edited, "dev:/workspace/said.js")
	says("vite: two, loaded once")
	says("notebook: 42, and 1 2 3 one after the other")
	says("chromium: rendered inside, and sees one page of vite's: two")
	p.must("quarantine", "dev", "--reason", "a test")
	says("cut: vite notebook chromium")
	if err := node.Wait(); err != nil {
		t.Errorf("driver: %v\n%s", err, stderr.String())
	}
	for name, i := range ports {
		if status, text, _ := i.get(t, "", i.Token); status != 403 && status != 503 && status != 0 { // it is over, where the demotion was its end
			t.Errorf("%s after the quarantine: %d %.200s", name, status, text)
		}
	}
}

// notebook runs a cell that comes over a web socket, and sends what it prints while it runs.
const notebook = `
const http = require('http'), { WebSocketServer } = require('/clients/node_modules/ws');
const page = '<textarea id=cell></textarea><button id=run>run</button><pre id=out></pre><script>' +
  'const s = new WebSocket("ws://" + location.host + "/kernel"); s.onmessage = m => { out.innerText += m.data + "\\n" };' +
  's.onclose = () => { document.title = "gone" }; s.onopen = () => { document.title = "ready" }; run.onclick = () => s.send(cell.value)</script>';
const server = http.createServer((q, a) => { a.setHeader('Content-Type', 'text/html'); a.end(page); });
new WebSocketServer({ server, path: '/kernel' }).on('connection', s => s.on('message', async cell => {
  const print = x => s.send(String(x)), sleep = ms => new Promise(r => setTimeout(r, ms));
  await eval('(async () => {' + cell + '})()');
}));
server.listen(8888, '127.0.0.1');
`

const drivesServers = `
const { modules, ports } = JSON.parse(process.argv[2]);
const { chromium } = require(modules + '/playwright-core');
(async () => {
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'], timeout: 110000 });
  const vite = await browser.newPage();
  vite.setDefaultTimeout(60000);
  const live = new Promise(done => vite.on('websocket', s => done(s)));
  await vite.goto(ports.vite.url);
  await vite.getByText('one').waitFor();
  const socket = await live;
  const viteCut = new Promise(done => socket.on('close', done));
  await vite.waitForLoadState('networkidle');
  console.log('vite: one');
  await vite.getByText('two').waitFor();
  console.log('vite: two, ' + await vite.evaluate(() => window.first));

  const book = await (await browser.newContext()).newPage();
  book.setDefaultTimeout(60000);
  await book.goto(ports.notebook.url);
  await book.waitForFunction(() => document.title === 'ready');
  await book.fill('#cell', 'print(6 * 7); for (const n of [1, 2, 3]) { await sleep(100); print(n) }');
  await book.click('#run');
  await book.waitForFunction(() => out.innerText.trim() === '42');
  await book.waitForFunction(() => out.innerText.trim().split('\n').join(' ') === '42 1 2 3');
  console.log('notebook: 42, and 1 2 3 one after the other');

  const inside = await chromium.connectOverCDP('http://' + ports.chromium.address, { headers: { Authorization: 'Bearer ' + ports.chromium.token } });
  const chromiumCut = new Promise(done => inside.on('disconnected', done));
  const page = await inside.contexts()[0].newPage();
  page.setDefaultTimeout(60000);
  await page.setContent('<p id=p>no</p><script>p.innerText = "rendered inside"</script>');
  const rendered = await page.innerText('p');
  await page.goto('http://127.0.0.1:5173/');
  await page.waitForFunction(() => p.innerText !== 'none');
  console.log('chromium: ' + rendered + ", and sees one page of vite's: " + await page.innerText('p'));

  await Promise.all([viteCut, chromiumCut, book.waitForFunction(() => document.title === 'gone')]);
  console.log('cut: vite notebook chromium');
  await browser.close();
})().catch(e => { console.error(e); process.exit(1); });
`
