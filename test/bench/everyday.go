// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
)

// chore is what an agent has its sandbox do all day: a shell's words in the workspace.
type chore struct {
	name   string
	note   string
	make   string // once in each workspace, on the host
	before string // each time, on the host, not timed
	do     string
	long   bool // left out of a quick run: another chore's work many times over, or minutes of a compiler's
}

const goHere = `export PATH=/usr/local/go/bin:$PATH HOME=/workspace GOCACHE=/workspace/.cache GOFLAGS=-mod=mod GOTOOLCHAIN=local; `

var chores = []chore{
	{
		name: "npm ci", note: "a linter, a bundler, a test runner and a server, from a warm cache in the workspace",
		make: `cat >package.json <<'E'
{"name": "a", "version": "1.0.0", "dependencies": {"eslint": "^9", "webpack": "^5", "jest": "^29", "express": "^4"}}
E
npm install --cache .npm --no-audit --no-fund --loglevel error`,
		before: `rm -rf node_modules`,
		do:     `HOME=/workspace npm ci --cache .npm --offline --no-audit --no-fund --loglevel error`,
	},
	{
		name: "go build, cold", note: "a server with net/http, no cache",
		make: goServer, before: `rm -rf .cache server`, do: goHere + `go build -o server .`, long: true,
	},
	{
		name: "go build, incremental", note: "the same after a change",
		make: goServer, before: `date +'package main // %N' >other.go`, do: goHere + `go build -o server .`, long: true,
	},
	{name: "git status", note: "30 000 files", make: manyFiles, do: `git status --porcelain`},
	{name: "git status, 20 times", note: "in one sandbox", make: manyFiles, do: repeat(20, `git status --porcelain`), long: true},
	{name: "git grep", note: "30 000 files", make: manyFiles, do: `git grep -c 'value 7' >counts`},
	{name: "git grep, 20 times", note: "in one sandbox", make: manyFiles, do: repeat(20, `git grep -c 'value 7' >counts`), long: true},
	{
		name: "pytest", note: "400 tests in 20 files",
		make: `for i in $(seq 20); do cat >test_$i.py <<'E'
import pytest
@pytest.mark.parametrize("n", range(20))
def test_it(n, tmp_path):
    (tmp_path / "f").write_text(str(n))
    assert sum(int(str(i)) for i in range(n * 1000)) == n * 1000 * (n * 1000 - 1) // 2
E
done`,
		do: `python3 -m pytest -q -p no:cacheprovider`,
	},
	{
		name: "sqlite", note: "50 commits of 2 000 rows, an index, a join",
		make: `cat >rows.py <<'E'
import os, sqlite3
for f in ("d", "d-wal", "d-shm"):
    if os.path.exists(f): os.remove(f)
c = sqlite3.connect("d")
c.execute("pragma journal_mode=wal")
c.execute("create table t(a, b)")
for i in range(50):
    with c: c.executemany("insert into t values(?, ?)", ((j, str(j)) for j in range(i * 2000, i * 2000 + 2000)))
c.execute("create index i on t(a)")
print(c.execute("select count(*) from t x join t y on x.a = y.a + 1").fetchone())
E`,
		do: `python3 rows.py`,
	},
	{name: "500 programs", note: "started by a shell, one after the other", do: `i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i+1)); done`},
	{
		name: "10 000 files", note: "written, read and removed",
		make: `cat >files.py <<'E'
import os
os.mkdir("f")
for i in range(10000): open(f"f/{i}", "w").write("x" * 100)
print(sum(len(open(f"f/{i}").read()) for i in range(10000)))
for i in range(10000): os.remove(f"f/{i}")
os.rmdir("f")
E`,
		do: `python3 files.py`,
	},
}

// repeat is what an agent does: its sandbox is started once.
func repeat(times int, words string) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s; i=$((i+1)); done", times, words)
}

const goServer = `cat >main.go <<'E'
package main

import (
	"encoding/json"
	"net/http"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { json.NewEncoder(w).Encode(r.Header) })
	http.ListenAndServe("127.0.0.1:0", nil)
}
E
printf 'module a\n\ngo 1.26\n' >go.mod
PATH=/usr/local/go/bin:$PATH HOME=$PWD GOCACHE=$PWD/.cache GOFLAGS=-mod=mod go build -o server .`

const manyFiles = `git init -q
for d in $(seq 300); do mkdir d$d; for f in $(seq 100); do echo "value $f of $d" >d$d/$f.txt; done; done
git add -A
git -c user.name=a -c user.email=a@a commit -qm a
sleep 1
git status --porcelain`

// everyday races each chore in ring 2, with the whole machine to itself as the node's ranges may say (M-3), against bwrap.
func (b *bench) everyday() (rows []Row, err error) {
	dir, err := os.MkdirTemp("/var/tmp", "agentrun-bench-") // a disk, as workspaces are
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "config.yaml")
	ranges := "ranges:\n- {ring: 2, cpu: 64, memory: 64GiB, timeout: none, cpu_time: none}\n"
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(config, []byte(ranges), 0o600)); err != nil {
		return nil, err
	}
	for i, c := range chores {
		if c.long && !b.size.long {
			continue
		}
		more, err := b.chore(c, filepath.Join(dir, fmt.Sprint(i)), config)
		if err != nil {
			more = append(more, Row{Name: c.name, Note: c.note, NotRun: err.Error(), Optional: true})
		}
		rows = append(rows, more...)
		if b.ctx.Err() != nil {
			return nil, b.ctx.Err()
		}
	}
	return rows, nil
}

func (b *bench) chore(c chore, dir, config string) ([]Row, error) {
	const bwrap = ", bwrap"
	ours, theirs := filepath.Join(dir, "agentrun"), filepath.Join(dir, "bwrap")
	for _, ws := range []string{ours, theirs} {
		if err := os.MkdirAll(ws, 0o755); err != nil {
			return nil, err
		}
		if err := b.onHost(ws, c.make); err != nil {
			return nil, err
		}
	}
	limits := []string{"--cpus", fmt.Sprint(goruntime.NumCPU()), "--memory", "4G", "--pids", "1024", "--timeout", "none", "--cpu-time", "none"}
	ring2 := with([]string{b.agentrun, "--config", config, "exec", "--ring", "2", "--no-gateway", "--workspace", ours}, limits...)
	full := with(bwrapFull, "--ro-bind", "/etc", "/etc", "--bind", theirs, "/workspace", "--chdir", "/workspace")
	return b.raceAfter([]contender{
		{name: c.name, argv: with(ring2, "--", "sh", "-ec", c.do), note: c.note, optional: true},
		{name: c.name + bwrap, argv: with(full, "--", "sh", "-ec", c.do), note: "fuller view, and the workspace", optional: true},
	}, []reference{{name: c.name + bwrap, label: "bwrap"}}, b.size.everyday, func(one contender) error {
		if strings.HasSuffix(one.name, bwrap) {
			return b.onHost(theirs, c.before)
		}
		return b.onHost(ours, c.before)
	})
}

// onHost runs a shell's words in a folder, outside of every sandbox.
func (b *bench) onHost(dir, words string) error {
	cmd := exec.CommandContext(b.ctx, "sh", "-ec", words)
	cmd.Dir, cmd.Env = dir, b.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("on the host: %w: %.300s", err, out)
	}
	return nil
}
