// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A browser as coding agents use one: Playwright with its defaults, and the command line with --no-sandbox alone, since its own sandbox
// would nest. With more threads than ring 2 has by default, five times within a minute, and nobody is held for it (H-24, F13).
func TestBrowserRenders(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	needProgram(t, "chromium")
	clients := needNPM(t)
	n := newNode(t)
	n.must("agent", "score", "a", "0.8")
	ws := workspace(t)
	write(t, filepath.Join(ws, "page.html"), "<p id=p>no</p><script>p.innerText = 'rendered ' + (6 * 7)</script>", 0o644)
	write(t, filepath.Join(ws, "drive.js"), `
const { chromium } = require('/clients/node_modules/playwright-core');
(async () => {
  for (let i = 0; i < 4; i++) {
    const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', timeout: 110000 });
    const page = await browser.newPage();
    await page.goto('file:///workspace/page.html');
    await page.click('p');
    console.log(await page.innerText('p'), (await page.screenshot()).length > 500);
    await browser.close();
  }
})().catch(e => { console.error(e); process.exit(1); });`, 0o644)
	o := n.opts(slices.Concat(clients, []string{"--agent", "a", "--ring", "2", "--pids", "512", "--timeout", "280s", "--cpu-time", "280s", "--workspace", ws})...)
	r := run(t, o, "sh", "-c", "node drive.js && chromium --headless=new --no-sandbox --dump-dom file:///workspace/page.html")
	r.want(t, 0, "exited")
	if n := strings.Count(r.stdout, "rendered 42 true\n"); n != 4 || !strings.Contains(r.stdout, `<p id="p">rendered 42</p>`) {
		t.Errorf("got %q\n%.3000s", r.stdout, r.stderr)
	}
	for _, e := range n.audit("node") {
		if e.Kind == "breach" || e.Kind == "quarantine" || e.Kind == "near_breach" {
			t.Errorf("%s: %v", e.Kind, e.Data)
		}
	}
}
