// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrun/control"
)

// Kept sandboxes by the control API (M-23): what the command line does, for programs.

func (n *daemonNode) client(t *testing.T) *control.Client {
	t.Helper()
	c, err := control.Open(n.run, "daemon")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refusedWith(err error) string {
	if e, ok := errors.AsType[*control.Error](err); ok {
		return fmt.Sprint(e.Status, " ", e.Code)
	}
	return fmt.Sprint(err)
}

// M-23: a kept sandbox's whole life by the client, beside the command line's; each change is on record with who asked for it.
func TestM23KeptByAPI(t *testing.T) {
	d := startDaemon(t, "--pool-max", "0")
	p, c, ctx := place{t, d.run, d.state}, d.client(t), t.Context()
	ws := workspace(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want string, err error) {
		t.Helper()
		if got := refusedWith(err); got != want {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	}
	options := map[string]json.RawMessage{
		"ring": json.RawMessage("2"), "no-gateway": json.RawMessage("true"), "workspace": json.RawMessage(`"."`), "quota": json.RawMessage(`"1M"`),
		"env": json.RawMessage(`["SECRET=a"]`), "env-pass": json.RawMessage(`["GIVEN"]`), "keep-for": json.RawMessage(`"7d"`), "restart": json.RawMessage(`"on-failure"`),
	}
	k, err := c.CreateKept(ctx, control.KeptRequest{Name: "dev", Options: options, Dir: ws})
	must(err)
	if k.Ring != 2 || k.Quota != 1<<20 || k.Dir != ws || k.Live || k.Wanted || k.Until.Before(time.Now().Add(6*24*time.Hour)) || !slices.Equal(k.Command, []string{"sleep", "infinity"}) {
		t.Errorf("created: %+v", k)
	}
	_, err = c.CreateKept(ctx, control.KeptRequest{Name: "dev"})
	refused("409 conflict", err)
	began, err := c.StartKept(ctx, "dev", control.KeptStart{Environ: []string{"GIVEN=b", "OTHER=c"}})
	must(err)
	if lives := p.lives("dev"); began.Name != "dev" || !slices.Equal(lives, []string{began.ID}) {
		t.Errorf("started %+v, live %v", began, lives)
	}
	if got, want := p.in("dev", "echo x > ~/kept; echo $SECRET $GIVEN $OTHER; pwd"), "a b\n/workspace"; got != want {
		t.Errorf("in it: %q, want %q", got, want)
	}
	_, err = c.StartKept(ctx, "dev", control.KeptStart{})
	refused("409 conflict", err)
	refused("409 conflict", c.RenameKept(ctx, "dev", "other"))
	refused("409 conflict", c.RemoveKept(ctx, "dev", false))
	if k, err = c.KeptOne(ctx, "dev"); err != nil || !k.Live || !k.Wanted || k.Run != began.ID {
		t.Errorf("live: %+v, %v", k, err)
	}
	if text := fmt.Sprint(d.api(t, "GET", "/v1/kept", "", 200), d.api(t, "GET", "/v1/kept/dev", "", 200)); strings.Contains(text, "SECRET") {
		t.Errorf("readers see the environment: %s", text)
	}
	// Of one that runs, too; and what the snapshot has comes back.
	if k, err = c.SnapshotKept(ctx, "dev", "one"); err != nil || len(k.Snapshots) != 1 || k.Snapshots[0].By != "uid:0" || k.Snapshots[0].Layers != 1 {
		t.Errorf("snapshot: %+v, %v", k, err)
	}
	_, err = c.SnapshotKept(ctx, "dev", "one")
	refused("409 conflict", err)
	_, err = c.RollbackKept(ctx, "dev", "one")
	refused("409 conflict", err)
	p.in("dev", "echo y > ~/kept")
	if k, err = c.ForkKept(ctx, "dev", control.KeptFork{To: "fork", Snapshot: "one", For: time.Hour}); err != nil || k.Name != "fork" || k.Until.IsZero() || k.Sealed == 0 || k.Live {
		t.Errorf("fork: %+v, %v", k, err)
	}
	must(c.RemoveKept(ctx, "fork", false))
	must(c.StopKept(ctx, "dev", 10*time.Second))
	_, err = c.RollbackKept(ctx, "dev", "one")
	must(err)
	must(c.DropKeptSnapshot(ctx, "dev", "one"))
	refused("404 not_found", c.DropKeptSnapshot(ctx, "dev", "one"))
	must(c.StopKept(ctx, "dev", 0)) // again: it has no run
	if lives := p.lives("dev"); len(lives) > 0 {
		t.Errorf("still live: %v", lives)
	}
	must(c.RenameKept(ctx, "dev", "other"))
	refused("404 not_found", c.RenameKept(ctx, "dev", "other"))
	if k, err = c.KeepKept(ctx, "other", 0); err != nil || !k.Until.IsZero() {
		t.Errorf("kept: %+v, %v", k, err)
	}
	p.must("start", "other") // the same to the command line
	if got := p.in("other", "cat ~/kept"); got != "x" {
		t.Errorf("kept: %q", got)
	}
	list, err := c.Kept(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "other" || !list[0].Live {
		t.Errorf("list: %+v, %v", list, err)
	}
	must(c.RemoveKept(ctx, "other", true))
	if p.holds("other") || len(p.lives("other")) > 0 {
		t.Error("it is still there")
	}
	refused("404 not_found", c.RemoveKept(ctx, "other", true))
	var changes []string
	for _, e := range p.audit() {
		if e.Kind == "sandbox_life" {
			changes = append(changes, fmt.Sprint(e.Data["change"], " ", e.Data["by"]))
		}
	}
	// The command line's is the login user's, where there is one.
	want := []string{
		"created", "started", "snapshot", "forked", "removed", "stopped", "rolled_back", "snapshot_removed", "stopped", "renamed", "kept", "started", "removed",
	}
	for i, w := range want {
		if i >= len(changes) || !strings.HasPrefix(changes[i], w+" uid:") || w != "started" && changes[i] != w+" uid:0" {
			t.Errorf("on record %q, want %q by uid:0", changes, want)
			break
		}
	}
	d.drain(t)
}

// M-23: what is wrong is refused by name and code, and leaves nothing.
func TestM23KeptWrongInputByAPI(t *testing.T) {
	d := startDaemon(t, "--pool-max", "0")
	p := place{t, d.run, d.state}
	p.kept("there", "--ring", "3")
	for _, tc := range []struct {
		line, body string
		status     int
		says       string
	}{
		{"POST /v1/kept", `{}`, 400, "name"},
		{"POST /v1/kept", `{"name":"../up"}`, 400, "name: "},
		{"POST /v1/kept", `{"name":"new","zz":1}`, 400, "zz: unknown"},
		{"POST /v1/kept", `{"name":"new","command":[[]]}`, 400, "command"},
		{"POST /v1/kept", `{"name":"new","dir":"here"}`, 400, "dir: "},
		{"POST /v1/kept", `{"name":"new","environ":["x"]}`, 400, "environ: "},
		{"POST /v1/kept", `{"name":"new","options":{"name":"other"}}`, 400, "options: "},
		{"POST /v1/kept", `{"name":"new","options":{"n":"other"}}`, 400, "unknown flag -n"},
		{"POST /v1/kept", `{"name":"new","options":{"json":true}}`, 400, "options: "},
		{"POST /v1/kept", `{"name":"new","options":{"t":true}}`, 400, "options: "},
		{"POST /v1/kept", `{"name":"new","options":{"of-sandbox":"there"}}`, 400, "of-sandbox"},
		{"POST /v1/kept", `{"name":"new","options":{"no-daemon":true}}`, 400, "options: "},
		{"POST /v1/kept", `{"name":"new","options":{"ring":{"a":1}}}`, 400, "options.ring"},
		{"POST /v1/kept", `{"name":"new","options":{"ring":9}}`, 400, "--ring 9"},
		{"POST /v1/kept", `{"name":"new","options":{"ring=2 --rootfs":"/"}}`, 400, "options: "},
		{"POST /v1/kept", `{"name":"new","options":{"restart":"often"}}`, 400, "none of no, on-failure, always"},
		{"POST /v1/kept", `{"name":"new","options":{"quota":"big"}}`, 400, "no size"},
		{"POST /v1/kept", `{"name":"new","options":{"keep-for":"soon"}}`, 400, "no time"},
		{"POST /v1/kept", `{"name":"new","options":{"idle-pause":"1ms"}}`, 400, "--idle-pause"},
		{"POST /v1/kept", `{"name":"new","options":{"home":"h","ring":2}}`, 400, "a home of its own"},
		{"POST /v1/kept", `{"name":"new","command":["nonesuch-command"],"options":{"no-gateway":true}}`, 400, "not found"},
		{"POST /v1/kept", `{"name":"there","options":{"no-gateway":true}}`, 409, "already"},
		{"GET /v1/kept/new", ``, 404, "there is no kept sandbox"},
		{"POST /v1/kept/new/start", `{}`, 404, "there is no kept sandbox"},
		{"POST /v1/kept/new/stop", `{}`, 404, "there is no kept sandbox"},
		{"POST /v1/kept/new/rename", `{"to":"newer"}`, 404, "there is no kept sandbox"},
		{"POST /v1/kept/new/keep", `{"for_ns":1}`, 404, "there is no kept sandbox"},
		{"DELETE /v1/kept/new", ``, 404, "there is no kept sandbox"},
		{"DELETE /v1/kept/..", ``, 400, "dotted"},
		{"DELETE /v1/kept/a%2fb", `{"force":true}`, 400, "slashed"},
		{"DELETE /v1/kept/a%20b", `{"force":true}`, 400, "no name of a sandbox"},
		{"DELETE /v1/kept/there", `{"force":1}`, 400, "force"},
		{"POST /v1/kept/there/start", `{"environ":["x"]}`, 400, "environ: "},
		{"POST /v1/kept/there/stop", `{"grace_ns":-1}`, 400, "grace_ns: "},
		{"POST /v1/kept/there/stop", `{"grace_ns":300000000001}`, 400, "grace_ns: "},
		{"POST /v1/kept/there/rename", `{}`, 400, "to"},
		{"POST /v1/kept/there/rename", `{"to":"a/b"}`, 400, "to: "},
		{"POST /v1/kept/there/rename", `{"to":"there"}`, 409, "already"},
		{"POST /v1/kept/there/keep", `{}`, 400, "for_ns"},
		{"POST /v1/kept/there/keep", `{"for_ns":-1}`, 400, "for_ns: "},
		{"POST /v1/kept/new/snapshot", `{"name":"s"}`, 404, "there is no kept sandbox"},
		{"POST /v1/kept/there/snapshot", `{}`, 400, "name"},
		{"POST /v1/kept/there/snapshot", `{"name":"../s"}`, 400, "name: "},
		{"DELETE /v1/kept/there/snapshot", `{"name":"s"}`, 404, "no snapshot"},
		{"POST /v1/kept/there/rollback", `{"name":"s"}`, 404, "no snapshot"},
		{"POST /v1/kept/there/rollback", `{}`, 400, "name"},
		{"POST /v1/kept/there/fork", `{}`, 400, "to"},
		{"POST /v1/kept/there/fork", `{"to":"a/b"}`, 400, "to: "},
		{"POST /v1/kept/there/fork", `{"to":"new","snapshot":"s"}`, 404, "no snapshot"},
		{"POST /v1/kept/there/fork", `{"to":"there"}`, 409, "already"},
		{"POST /v1/kept/there/fork", `{"to":"new","for_ns":-1}`, 400, "for_ns: "},
		{"PUT /v1/kept/there", ``, 405, "method"},
		{"GET /v1/kept/there?zz=1", ``, 400, "zz"},
	} {
		method, path, _ := strings.Cut(tc.line, " ")
		if e, _ := d.api(t, method, path, tc.body, tc.status)["error"].(map[string]any); !strings.Contains(fmt.Sprint(e["message"]), tc.says) {
			t.Errorf("%s %s: got %v, want %q", tc.line, tc.body, e, tc.says)
		}
	}
	if p.holds("new") || !p.holds("there") {
		t.Error("a refused request has changed something")
	}
	if got := p.changes("there"); !slices.Equal(got, []string{"created"}) {
		t.Errorf("on record: %q", got)
	}
}

// THREATS "joining and keeping": who may not start a run makes and starts no kept sandbox; readers change none; others see none.
func TestM23OnlyOwnersMakeKept(t *testing.T) {
	needProgram(t, "curl")
	d, as := operatorsDaemon(t)
	p := place{t, d.run, d.state}
	p.kept("dev", "--ring", "3")
	const nobody, reader, operator = 3, 2, 1
	for _, tc := range []struct {
		line, body string
		least      int // who may; 0: root alone
	}{
		{"GET /v1/kept", "", reader},
		{"GET /v1/kept/dev", "", reader},
		{"POST /v1/kept", `{"name":"new","options":{"no-gateway":true}}`, 0},
		{"POST /v1/kept/dev/start", `{}`, 0},
		{"POST /v1/kept/dev/keep", `{"for_ns":0}`, operator},
		{"POST /v1/kept/dev/stop", `{}`, operator},
		{"POST /v1/kept/dev/rename", `{"to":"old"}`, operator},
		{"DELETE /v1/kept/old", `{}`, operator},
	} {
		for who := nobody; who >= operator; who-- {
			method, path, _ := strings.Cut(tc.line, " ")
			got, may := as(who, method, path, tc.body), who <= tc.least
			if strings.Contains(got, "forbidden") == may || may && strings.Contains(got, "error") {
				t.Errorf("%s by %d: got %s, want it done: %v", tc.line, who, got, may)
			}
		}
	}
	if p.holds("dev") || p.holds("old") || p.holds("new") {
		t.Error("an operator's removal has left something, or somebody has made one")
	}
	for _, e := range p.audit() {
		if e.Kind == "sandbox_life" && e.Data["change"] != "created" && e.Data["by"] != "uid:54321" {
			t.Errorf("on record: %v", e.Data)
		}
	}
	d.drain(t)
}

// operatorsDaemon answers members of two groups; as asks as somebody in one: 1 operators, 2 readers.
func operatorsDaemon(t *testing.T, flags ...string) (d *daemonNode, as func(group int, method, path, body string) string) {
	t.Helper()
	d = newDaemon(t)
	config := filepath.Join(t.TempDir(), "agentrun/config.yaml")
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, config, "control: {operate_group: \"1\", read_group: \"2\"}\n", 0o600)
	d.within = []string{"/usr/bin/env", "XDG_CONFIG_HOME=" + filepath.Dir(filepath.Dir(config))}
	d.start(t, append([]string{"--pool-max", "0"}, flags...)...)
	for dir := d.run; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(dir, info.Mode().Perm()|0o011); err != nil {
				t.Fatal(err)
			}
		}
	}
	return d, func(group int, method, path, body string) string {
		cmd := exec.Command("curl", "-sS", "--unix-socket", filepath.Join(d.run, "control/daemon.sock"), "-X", method, "http://localhost"+path, "-d", body)
		if body == "" {
			cmd.Args = cmd.Args[:len(cmd.Args)-2]
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: uint32(group)}} //nolint:gosec // one of two
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
}

// M-23: a daemon that is killed in the middle of a change leaves the old or the new, which the next one goes on with.
func TestM23KeptSurvivesTheDaemonsDeath(t *testing.T) {
	for _, point := range []string{
		"sandbox/create=kill", "sandbox/save=kill", "sandbox/saved=kill@2", "sandbox/saved=kill@3", "sandbox/rename=kill", "sandbox/remove=kill",
		"record/sandbox_life=kill", "record/sandbox_life=kill@4",
	} {
		t.Run(strings.ReplaceAll(point, "/", " "), func(t *testing.T) {
			d := newDaemon(t)
			d.within = []string{"/usr/bin/env", "AGENTRUN_TESTONLY_FAULT=" + point}
			d.start(t, "--pool-max", "0")
			p, c, ctx := place{t, d.run, d.state}, d.client(t), t.Context()
			_, err := c.CreateKept(ctx, control.KeptRequest{Name: "s", Options: map[string]json.RawMessage{"no-gateway": json.RawMessage("true")}})
			for _, next := range []func() error{
				func() error { _, err := c.StartKept(ctx, "s", control.KeptStart{}); return err },
				func() error { return c.StopKept(ctx, "s", 0) },
				func() error { return c.RenameKept(ctx, "s", "t") },
				func() error { return c.RemoveKept(ctx, "t", false) },
			} {
				if err == nil {
					err = next()
				}
			}
			if err == nil {
				t.Fatal("nothing has failed")
			}
			if err := d.Wait(); !bySIGKILL(err) {
				t.Fatalf("the daemon: %v", err)
			}
			noAgents(t)
			d.within = nil
			d.start(t, "--pool-max", "0")
			list, err := c.Kept(ctx)
			if err != nil || len(list) > 1 {
				t.Fatalf("of one sandbox there are %+v, %v", list, err)
			}
			for _, k := range list {
				if _, err := c.StartKept(ctx, k.Name, control.KeptStart{}); err != nil {
					t.Error(err)
				}
				if err := c.RemoveKept(ctx, k.Name, true); err != nil {
					t.Error(err)
				}
			}
			p.must("gc")
			if left, _ := filepath.Glob(filepath.Join(d.state, "sandboxes", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			d.drain(t)
		})
	}
}
