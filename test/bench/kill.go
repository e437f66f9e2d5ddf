// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/rings"
)

const insideCrowd = "/opt/crowd"

// victims is what is killed: so many processes that sleep, or a fork bomb at its pids limit.
type victims struct {
	name, arg string
	processes int
	pids      int
}

// killer starts victims and times its end.
type killer struct {
	name, note string
	kill       func(victims) (time.Duration, error)
}

// kills times the way from a kill to no process.
func (b *bench) kills() ([]Row, error) {
	var crowds []victims
	for _, n := range b.size.killed {
		crowds = append(crowds, victims{fmt.Sprintf("%d processes", n), fmt.Sprint(n), n, n + 32})
	}
	crowds = append(crowds, victims{fmt.Sprintf("fork bomb at %d", b.size.bomb), "bomb", 2, b.size.bomb})
	killers := []killer{
		{"agentrun, POST /v1/kill", "answers when every process is proved dead; order and result on disk", b.killByAPI},
		{"agentrun kill", "the command: the same and its own start", b.killByCommand},
		{"runc kill --all", "the command, then until the cgroup is empty", b.killByRunc("kill", "--all", runcID, "KILL")},
		{"runc delete -f", "the command, then until the cgroup is empty; also removes the container", b.killByRunc("delete", "--force", runcID)},
	}
	refs := []reference{{name: killers[2].name, label: "runc kill"}, {name: killers[3].name, label: "runc delete"}}
	order := rand.New(rand.NewPCG(2, 3))
	var rows []Row
	for _, c := range crowds {
		took := samples{}
		for range b.size.kills {
			for _, i := range order.Perm(len(killers)) {
				if b.ctx.Err() != nil {
					return rows, b.ctx.Err()
				}
				t, err := killers[i].kill(c)
				if err != nil {
					return rows, fmt.Errorf("%s, %s: %w", c.name, killers[i].name, err)
				}
				took.add(killers[i].name, t.Seconds()*1e3)
			}
		}
		for _, k := range killers {
			row := took.row(k.name, "ms", refs)
			row.Name, row.Note = c.name+", "+k.name, k.note
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func (b *bench) holdCrowd(c victims) (*holder, liveRun, error) {
	return b.holdLive([]string{
		b.agentrun, "exec", "--no-daemon", "--ring", "2", "--cpus", "1", "--memory", "1G", "--pids", fmt.Sprint(c.pids),
		"--ro-bind", b.path("crowd") + ":" + insideCrowd, "--", insideCrowd, c.arg,
	})
}

func (b *bench) killByAPI(c victims) (time.Duration, error) {
	h, r, err := b.holdCrowd(c)
	if err != nil {
		return 0, err
	}
	defer func() { _ = h.release() }() // its exit code says that it was killed
	began := time.Now()
	results, err := r.Kill(b.ctx, control.Selector{ID: r.id}, string(rings.KillManual), "")
	took := time.Since(began)
	if err != nil || len(results) != 1 {
		return 0, fmt.Errorf("%d results: %w", len(results), err)
	}
	var res struct {
		Killed int  `json:"processes_killed"`
		Dead   bool `json:"processes_dead"`
	}
	if err := json.Unmarshal(results[0].Result, &res); err != nil {
		return 0, err
	}
	if !res.Dead {
		return 0, fmt.Errorf("the answer is %s", results[0].Result)
	}
	return took, nil
}

func (b *bench) killByCommand(c victims) (time.Duration, error) {
	h, r, err := b.holdCrowd(c)
	if err != nil {
		return 0, err
	}
	defer func() { _ = h.release() }()
	t, err := b.time(contender{name: "agentrun kill", argv: []string{b.agentrun, "kill", r.id}})
	return t.wall, err
}

const runcID = "ID" // stands for the container's id

func (b *bench) killByRunc(verb ...string) func(victims) (time.Duration, error) {
	return func(c victims) (time.Duration, error) {
		bundle, err := b.crowdBundle(c)
		if err != nil {
			return 0, err
		}
		defer func() { _ = os.RemoveAll(bundle) }() // clean removes what is left
		runc := b.oci("runc", bundle)
		h, err := b.hold(runc.argv)
		if err != nil {
			runc.undo()
			return 0, err
		}
		defer func() { _ = h.release(); runc.undo() }()
		id := runc.argv[len(runc.argv)-1]
		argv := with(runc.argv[:3], verb...)
		for i := range argv {
			if argv[i] == runcID {
				argv[i] = id
			}
		}
		began := time.Now()
		if _, err := b.time(contender{name: "runc " + verb[0], argv: argv}); err != nil {
			return 0, err
		}
		err = b.awaitEmpty()
		return time.Since(began), err
	}
}

// crowdBundle is the bundle of the other parts with the crowd's limits, and with the calls that make processes.
func (b *bench) crowdBundle(c victims) (string, error) {
	return b.bundleWith([]string{insideCrowd, c.arg}, func(config object) {
		linux := config["linux"].(object)
		linux["resources"] = object{
			"cpu":    object{"quota": 100000, "period": 100000},
			"memory": object{"limit": 1 << 30, "swap": 1 << 30},
			"pids":   object{"limit": c.pids},
		}
		filter := linux["seccomp"].(object)
		filter["syscalls"] = append(filter["syscalls"].([]object), object{"names": []string{"clone", "clone3", "fork", "vfork"}, "action": "SCMP_ACT_ALLOW"})
	}, object{
		"destination": insideCrowd, "type": "bind", "source": b.path("crowd"), "options": []string{"bind", "ro", "nosuid", "nodev"},
	})
}

// awaitEmpty waits until the peers' cgroup has no process, or is gone.
func (b *bench) awaitEmpty() error {
	name := filepath.Join(filepath.Base(b.dir), "oci", "cgroup.procs")
	for began := time.Now(); ; time.Sleep(50 * time.Microsecond) {
		empty := true
		for _, top := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
			procs, err := os.ReadFile(filepath.Join(top, name))
			// ENODEV: removed between open and read.
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
				return err
			}
			empty = empty && len(procs) == 0
		}
		if empty {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s isn't empty after %v", name, patience)
		}
	}
}
