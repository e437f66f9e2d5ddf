// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// disk is a file system of its own, of which a power cut leaves what was on the disk.
type disk struct {
	t         *testing.T
	file, dir string
}

func newDisk(t *testing.T) disk {
	t.Helper()
	needSandbox(t)
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("need: program mkfs.ext4: ", err)
	}
	d := disk{t, filepath.Join(t.TempDir(), "disk"), t.TempDir()}
	if err := os.WriteFile(d.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.file, 64<<20); err != nil {
		t.Fatal(err)
	}
	d.does("mkfs.ext4", "-q", d.file)
	d.does("mount", "-o", "loop", d.file, d.dir)
	t.Cleanup(func() { d.does("umount", d.dir) })
	return d
}

func (d disk) does(argv ...string) {
	d.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		d.t.Fatalf("%q: %v: %s", argv, err, out)
	}
}

func (d disk) folder(name string) string {
	d.t.Helper()
	at := filepath.Join(d.dir, name)
	if err := os.Mkdir(at, 0o700); err != nil {
		d.t.Fatal(err)
	}
	return at
}

// What a power cut leaves at the most and at the least (fs/ext4/ext4.h): with the journal as it is in memory, but nothing of what files
// hold that was not written yet; and what is on the disk already.
const (
	journaled = 1
	bare      = 2
)

// cut has nothing be written any more.
func (d disk) cut(how int) {
	d.t.Helper()
	f, err := os.Open(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	const ext4IOCShutdown = 0x8004587d
	if err := unix.IoctlSetPointerInt(int(f.Fd()), ext4IOCShutdown, how); err != nil {
		d.t.Fatal(err)
	}
}

// boots has the disk as the next boot finds it.
func (d disk) boots() {
	d.t.Helper()
	d.does("umount", d.dir)
	d.does("mount", "-o", "loop", d.file, d.dir)
}

// H-7, H-28: a call that a run was told can be undone can be, and an undo whose upstream has been asked is made by nobody again, also where
// the power went right then.
func TestH7UndoOutlastsAPowerCut(t *testing.T) {
	d := newDisk(t)
	x, p := family(t, false)
	b := newBookings(t)
	x.settings.tool("book", b.tool("10m"))
	p.state = d.folder("state")
	p.family(x, nil, using+`use("book", place="a")`).toItsEnd(t).want(t, 0, "exited")
	id := p.undoables()["book"][0]
	d.cut(journaled)
	d.boots()
	b.mu.Lock()
	b.then = func() { d.cut(bare) }
	b.mu.Unlock()
	if r := p.do("undo", id); r.exit == 0 || len(b.asked()) != 1 {
		t.Fatalf("the upstream was asked %q, and nothing knows how it ended\n%s%s", b.asked(), r.stdout, r.stderr)
	}
	d.boots()
	p.notUndone("undo_done", id)
	if n := len(b.asked()); n != 1 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

// M-6: changes that a run has told of wait, and those that are applied are there, also where the power went right then.
func TestOverlayOutlastsAPowerCut(t *testing.T) {
	need(t, hostcaps.OverlayIDMapped)
	d := newDisk(t)
	p := newPlace(t)
	p.state = d.folder("state")
	ws := d.folder("ws")
	owned(t, ws)
	r := p.do("exec", "--json", "--ring", "2", "--no-gateway", "--workspace", ws, "--workspace-mode", "overlay", "--", "sh", "-c", "echo work > new")
	if r.exit != 0 {
		t.Fatalf("exit %d: %s", r.exit, r.stderr)
	}
	waits, _ := filepath.Glob(filepath.Join(p.state, "changes", "*.json"))
	if len(waits) != 1 {
		t.Fatalf("changes: %q", waits)
	}
	run := strings.TrimSuffix(filepath.Base(waits[0]), ".json")
	d.cut(journaled)
	d.boots()
	p.differs(run, "added new")
	p.must("apply", run)
	d.cut(journaled)
	d.boots()
	if got, err := os.ReadFile(filepath.Join(ws, "new")); string(got) != "work\n" {
		t.Errorf("applied is %q, %v", got, err)
	}
}

// The node's counters count on after a power cut.
func TestCountersOutlastAPowerCut(t *testing.T) {
	d := newDisk(t)
	p := newPlace(t)
	p.state = d.folder("state")
	p.must("exec", "--ring", "3", "--no-gateway", "--", "true")
	d.cut(journaled)
	d.boots()
	if r := p.must("exec", "--ring", "3", "--no-gateway", "--", "true"); strings.Contains(r.stderr, "counters") {
		t.Errorf("%s", r.stderr)
	}
	p.must("metrics")
}

// H-31: agents are held also where an agent has filled the disk of the state.
func TestH31QuarantineOnAFullDisk(t *testing.T) {
	d := newDisk(t)
	p := newPlace(t)
	p.state = d.folder("state")
	p.must("agent", "score", "a", "0.7")
	big, err := os.Create(filepath.Join(d.dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	for size := 1 << 20; size > 0; {
		if _, err := big.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	for i := range 40 {
		agent := fmt.Sprintf("a%d", i)
		said := p.do("agent", "quarantine", agent, "--reason", strings.Repeat("x", 300)) // it can't be put on record
		if r := p.do("agent", "show", agent, "--json"); !strings.Contains(r.stdout, "xxx") {
			t.Fatalf("%s is free: %s%s", agent, r.stdout, said.stderr)
		}
	}
}
