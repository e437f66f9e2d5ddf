// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/mounts"
)

// sizes is how much of everything is done.
type sizes struct {
	cold, warmUp int           // rounds of cold starts and bare starts
	steps        int           // runs whose launch steps are read
	memory       int           // times each keeper is weighed
	crowd        int           // sandboxes at once
	calls        int           // rounds of system call measurements
	callLoop     int           // calls in one measurement
	spawnLoop    int           // forks in one measurement
	proxy        int           // rounds of the proxies
	proxyTime    time.Duration // of one measurement of a proxy
	kills        int           // rounds of kills
	pulls        int           // rounds of pulls
	killed       []int         // processes in what is killed
	bomb         int           // pids limit of the fork bomb
	changes      int           // elevations and demotions under each load
	rates        int           // rounds of sustained starts
	rateTime     time.Duration // of one of them
	hundreds     int           // sandboxes at once beside a daemon
	everyday     int           // rounds of each chore
	long         bool          // chores many times over or from nothing, too
}

func fullSizes(n int) sizes {
	return sizes{cold: n, warmUp: 5, steps: max(30, n*3/10), memory: 5, crowd: 10, calls: max(10, n/10), callLoop: 200_000, spawnLoop: 500,
		proxy: max(7, n/10), proxyTime: 500 * time.Millisecond,
		kills: max(7, n/10), pulls: max(5, n/10), killed: []int{1, 100, 1000}, bomb: 256, changes: n, rates: 3, rateTime: 3 * time.Second, hundreds: 500,
		everyday: max(5, n/10), long: true}
}

var quickSizes = sizes{cold: 3, warmUp: 1, steps: 3, memory: 3, crowd: 2, calls: 3, callLoop: 2_000, spawnLoop: 10, proxy: 3, proxyTime: 100 * time.Millisecond,
	kills: 1, pulls: 1, killed: []int{1, 20}, bomb: 32, changes: 2, rates: 1, rateTime: 100 * time.Millisecond, hundreds: 5, everyday: 1}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	agentrun := fs.String("agentrun", "bin/agentrun", "the `program` measured")
	out := fs.String("out", "", "also write `PREFIX`.md and PREFIX.json")
	n := fs.Int("n", 100, "rounds of cold starts; the rest follows from it")
	only := fs.String("only", "", "measure only the `PART` of this name, as the first column has it")
	quick := fs.Bool("quick", false, "three rounds of everything, to see that it runs")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if *n < 3 || fs.NArg() > 0 || *only != "" && !known(*only) {
		fmt.Fprintln(os.Stderr, "bench: want --n 3 or more, --only a part there is, and no other arguments")
		return 2
	}
	size := fullSizes(*n)
	if *quick {
		size = quickSizes
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := measure(ctx, *agentrun, *only, size)
	if err == nil {
		report.Command = strings.Join(append([]string{"go run ./test/bench"}, args...), " ")
		report.Quick = *quick
		err = report.publish(os.Stdout, *out)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		return 1
	}
	if report.broken() {
		fmt.Fprintln(os.Stderr, "bench: not everything could be run; the table says what")
		return 1
	}
	return 0
}

// parts are the measurements, in the order of the table. One that fails leaves a row saying so, and the
// others still run.
var parts = []struct {
	name string
	do   func(*bench) ([]Row, error)
}{
	{"cold start", (*bench).coldStart},
	{"launch step", (*bench).launchSteps},
	{"enter", (*bench).enter},
	{"images", (*bench).images},
	{"bare binary", (*bench).bareStart},
	{"memory", (*bench).memory},
	{"system call", (*bench).systemCalls},
	{"fork+exec+wait", (*bench).spawns},
	{"proxy", (*bench).proxies},
	{"policy", (*bench).policy},
	{"gateway", (*bench).gatewayMemory},
	{"kill", (*bench).kills},
	{"ring change", (*bench).ringChanges},
	{"daemon", (*bench).daemon},
	{"gateway.yaml", (*bench).configured},
	{"safety loop", (*bench).safetyLoop},
	{"everyday", (*bench).everyday},
}

func known(part string) bool {
	for _, p := range parts {
		if p.name == part {
			return true
		}
	}
	return false
}

func measure(ctx context.Context, agentrun, only string, size sizes) (_ *Report, err error) {
	b, err := newBench(ctx, agentrun, size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.clean()) }()
	r := &Report{Date: time.Now().UTC().Truncate(time.Second), Machine: machine(), Versions: versions(b.agentrun)}
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		rows, err := p.do(b)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", p.name, ctx.Err())
		}
		for i := range rows {
			rows[i].Group = p.name
		}
		if err != nil {
			rows = append(rows, Row{Group: p.name, Name: "(all)", NotRun: err.Error()})
		}
		r.Rows = append(r.Rows, rows...)
	}
	r.Machine.LoadAfter = load()
	return r, nil
}

// bench is what the parts share.
type bench struct {
	ctx       context.Context
	agentrun  string
	size      sizes
	dir       string // ours, in memory; everything else the contenders write is in it
	disk      string // ours, on the disk
	state     string // agentrun's, there
	bin       string // the C programs
	env       []string
	null      *os.File
	daemonPID int // of the daemon that serves; 0: none has
	dockerd   int // its number; 0: none has been started
}

func newBench(ctx context.Context, agentrun string, size sizes) (b *bench, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root, as the sandboxes it measures do")
	}
	if agentrun, err = filepath.Abs(agentrun); err != nil {
		return nil, err
	}
	if _, err := os.Stat(agentrun); err != nil {
		return nil, fmt.Errorf("%w (make build)", err)
	}
	b = &bench{ctx: ctx, agentrun: agentrun, size: size}
	if b.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	// What all of them keep in /run in normal use lies in memory, as it does there on a machine that systemd starts. What outlives a
	// machine's end, agentrun's audit and all images, is on the disk.
	if b.dir, err = os.MkdirTemp("/run", "agentrun-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.clean())
		}
	}()
	if err := unix.Mount("agentrun-bench", b.dir, "tmpfs", 0, ""); err != nil {
		return nil, os.NewSyscallError("mount "+b.dir, err)
	}
	if b.disk, err = os.MkdirTemp("/var/lib", "agentrun-bench-"); err != nil {
		return nil, err
	}
	b.state = filepath.Join(b.disk, "state")
	if err := os.Mkdir(b.state, 0o700); err != nil {
		return nil, err
	}
	// The peers walk to what is in it as users without privilege.
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return nil, err
	}
	// The same few variables for everybody. The run folder is our own, so that what other runs on this
	// machine left or hold does not count.
	b.env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=" + b.dir,
		"AGENTRUN_RUN_DIR=" + filepath.Join(b.dir, "run"), "AGENTRUN_STATE_DIR=" + b.state,
	}
	b.bin = filepath.Join(b.dir, "bin")
	return b, b.compile()
}

// clean removes everything. Peers that failed halfway may have left cgroups; they are named after our
// folder, so nobody else's can be meant.
func (b *bench) clean() error {
	b.null.Close()
	err := removeCgroups(filepath.Base(b.dir))
	// Of 500 supervisors that are killed the last may still write an account that nobody waits for.
	gone := os.RemoveAll(b.state)
	for range 100 {
		if !errors.Is(gone, syscall.ENOTEMPTY) {
			break
		}
		time.Sleep(100 * time.Millisecond)
		gone = os.RemoveAll(b.state)
	}
	return errors.Join(err, gone, b.unmount(), os.RemoveAll(b.disk), os.RemoveAll(b.dir))
}

// unmount takes our folder away, and what peers leave mounted in it: Podman binds the folder of its overlays onto itself and
// lets that stand until the machine's end.
func (b *bench) unmount() error {
	table, err := mounts.Read()
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(table.Mounts) {
		if m.At == b.dir || strings.HasPrefix(m.At, b.dir+"/") || strings.HasPrefix(m.At, b.disk+"/") {
			err = errors.Join(err, os.NewSyscallError("umount2 "+m.At, unix.Unmount(m.At, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)))
		}
	}
	return err
}

func (b *bench) path(name string) string { return filepath.Join(b.bin, name) }
