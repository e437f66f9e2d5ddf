// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// As package supervisor has them (Begin, Begun).
const (
	begin = "begin\n"
	begun = "begun "
)

const (
	createTime = time.Minute // for everything before the start to be checked and admitted
	answerTime = 30 * time.Second
	launchTime = 5 * time.Second // a kill in the middle of a launch is refused, and carried out when there is a process
)

var errFDs = errors.New("--preserve-fds: nothing of the engine's gets into a sandbox")

func (r *runtime) create(c *cli.Context) (*container, error) {
	if c.NArg() != 1 {
		return nil, errors.New("want a container's id")
	}
	id := c.Args().First()
	if !idName.MatchString(id) || id == "." || id == ".." {
		return nil, fmt.Errorf("%.64q is no container's id", id)
	}
	if c.Int("preserve-fds") > 0 {
		return nil, errFDs
	}
	bundle, err := filepath.Abs(c.String("bundle"))
	if err != nil {
		return nil, err
	}
	spec, err := loadBundle(bundle)
	if err != nil {
		return nil, err
	}
	ring, err := ringOf(r.handler, spec)
	if err != nil {
		return nil, err
	}
	mounts, err := offers(spec.Annotations[podAnnotation])
	if err != nil {
		return nil, err
	}
	words, err := request(bundle, spec, ring, mounts, r.systemd)
	if err != nil {
		return nil, err
	}
	if here := c.Command.Name == "run" && !c.Bool("detach"); spec.Process.Terminal && !here && c.String("console-socket") == "" {
		return nil, errors.New("process.terminal: want --console-socket, which the terminal is given to")
	}
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		return nil, err
	}
	k := &container{
		Version: spec.Version, ID: id, Bundle: bundle, Rootfs: spec.Root.Path, Created: time.Now().UTC(), Owner: "root", Annotations: spec.Annotations,
		Ring: ring, Pod: holdsPod(spec), dir: r.folder(id),
	}
	if err := os.Mkdir(k.dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("container with id %q exists already", id)
	} else if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(k.Rootfs) {
		k.Rootfs = filepath.Join(bundle, k.Rootfs)
	}
	if err = keep(k.config(), spec); err == nil {
		if k.Pod {
			err = r.makePod(c, k, spec)
		} else {
			err = r.make(c, k, spec, append(words, "--bundle-config", k.config()))
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(k.dir))
	}
	return k, nil
}

// dial reaches a supervisor that waits. Engines' folders are deeper than a socket's address is long.
func (k *container) dial() (net.Conn, error) {
	dir, err := os.Open(k.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(k.socket())))
}

func (r *runtime) start(_ context.Context, k *container) error {
	if k.status() != "created" {
		return fmt.Errorf("container %s is %s, and can't be started", k.ID, k.status())
	}
	spec, err := loadBundle(k.dir)
	if err != nil {
		return err
	}
	if k.Pod {
		k.Begun = true
		if err := k.save(); err != nil {
			return err
		}
		return k.hooks(spec, "poststart")
	}
	conn, err := k.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	k.Begun = true
	if err := k.save(); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, begin); err != nil {
		return err
	}
	said, _ := io.ReadAll(io.LimitReader(conn, maxBundle))
	id, ok := strings.CutPrefix(string(said), begun)
	if !ok {
		for end := time.Now().Add(answerTime); k.alive() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		}
		return k.refusal(errors.New("its supervisor has ended"))
	}
	k.Run = strings.TrimSpace(id)
	if err := k.save(); err != nil {
		return err
	}
	return k.hooks(spec, "poststart")
}

// run is create and start, and unless detached the wait for the end.
func (r *runtime) run(c *cli.Context) error {
	k, err := r.create(c)
	if err != nil {
		return err
	}
	if k.master != nil {
		defer relay(k.master)()
	}
	if err := r.start(c.Context, k); err != nil {
		return errors.Join(err, r.end(c.Context, k), r.forget(k))
	}
	if c.Bool("detach") {
		return nil
	}
	defer passOn(func(s syscall.Signal) {
		if _, err := r.ask(c.Context, "signal", k.ref(), "--signal", strconv.Itoa(int(s))); err != nil && k.alive() {
			r.tell(err)
		}
	})()
	ended := <-k.ended
	if err := r.forget(k); err != nil {
		return err
	}
	if e, ok := errors.AsType[*exec.ExitError](ended); ok && e.ExitCode() > 0 {
		return exitCode(e.ExitCode())
	}
	return ended
}

// passOn gives what this process waits for the signals that come to it, until stop is called: dying of one, it would leave that to nobody.
func passOn(to func(syscall.Signal)) (stop func()) {
	passed := []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, slices.DeleteFunc(passed, signal.Ignored)...)
	go func() {
		for s := range signals {
			if s, ok := s.(syscall.Signal); ok {
				to(s)
			}
		}
	}()
	return func() { signal.Stop(signals); close(signals) }
}

func (r *runtime) state(ctx context.Context, k *container) error {
	s := k.told()
	if s.Status == "running" && !k.Pod && r.frozen(ctx, k) {
		s.Status = "paused"
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// told is what state and list tell of a container, in runc's order.
type told struct {
	Version     string            `json:"ociVersion"`
	ID          string            `json:"id"`
	PID         int               `json:"pid"`
	Status      string            `json:"status"`
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Created     time.Time         `json:"created"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Owner       string            `json:"owner"`
}

func (k *container) told() told {
	s := told{k.Version, k.ID, k.PID, k.status(), k.Bundle, k.Rootfs, k.Created, k.Annotations, k.Owner}
	if s.Status == "stopped" {
		s.PID = 0
	}
	return s
}

func (r *runtime) frozen(ctx context.Context, k *container) bool {
	var s struct {
		State string `json:"state"`
	}
	text, err := r.ask(ctx, "inspect", "--json", k.ref())
	return err == nil && json.Unmarshal(text, &s) == nil && (s.State == "frozen" || s.State == "paused")
}

// ask runs a verb of agentrun.
func (r *runtime) ask(ctx context.Context, words ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, r.program, words...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("agentrun %s: %w: %s", words[0], err, strings.TrimSpace(said.String()))
	}
	return out, err
}

// turn freezes all of a container, or lets it go on. stopped: by a signal, whose opposite ends it.
func (r *runtime) turn(ctx context.Context, k *container, verb string, stopped bool) error {
	if k.Pod {
		return errPod
	}
	if _, err := r.ask(ctx, verb, k.ref()); err != nil {
		return err
	}
	k.Stopped = stopped
	return k.save()
}

func (r *runtime) verb(name string) func(context.Context, *container) error {
	return func(ctx context.Context, k *container) error { return r.turn(ctx, k, name, false) }
}

// ignored are what a process doesn't hear that hasn't asked to (signal(7)), as the program of a container that is to be started hasn't.
var ignored = []unix.Signal{unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH}

// kill passes a signal on. SIGKILL is the kill switch's: what is left of a run must be proved dead. SIGSTOP and SIGCONT freeze and thaw: a
// process that is stopped by the signal leaves others running, and nothing on record.
func (r *runtime) kill(c *cli.Context) error {
	k, err := r.load(c.Args().First())
	if err != nil {
		return err
	}
	text := cmp.Or(c.Args().Get(1), "SIGTERM")
	sig, err := strconv.Atoi(text)
	if err != nil {
		name := strings.ToUpper(text)
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		sig = int(unix.SignalNum(name))
	}
	if sig < 0 || sig > 64 || sig == 0 && text != "0" {
		return fmt.Errorf("%.32q is no signal", text)
	}
	if !k.alive() {
		if c.Bool("all") { // of those that are left there are none
			return nil
		}
		return fmt.Errorf("container %s: %w", k.ID, errStopped)
	}
	switch {
	case sig == 0: // asks whether there is one
	case k.Pod:
		return unix.Kill(k.PID, unix.Signal(sig))
	case !k.Begun && slices.Contains(ignored, unix.Signal(sig)):
		return nil
	case !k.Begun:
		return unix.Kill(k.PID, unix.SIGTERM)
	case sig == int(unix.SIGKILL):
		err = r.end(c.Context, k)
	case sig == int(unix.SIGSTOP):
		err = r.turn(c.Context, k, "freeze", true)
	case sig == int(unix.SIGCONT) && k.Stopped:
		err = r.turn(c.Context, k, "thaw", false)
	case sig == int(unix.SIGCONT):
		err = nil // a pause isn't ended by it, and a process that runs goes on
	default:
		_, err = r.ask(c.Context, "signal", k.ref(), "--signal", strconv.Itoa(sig))
	}
	if err != nil && !k.alive() { // it has ended meanwhile
		return fmt.Errorf("container %s: %w", k.ID, errStopped)
	}
	return err
}

func (r *runtime) delete(c *cli.Context) error {
	k, err := r.load(c.Args().First())
	if err != nil {
		if c.Bool("force") && errors.Is(err, errNone) {
			return os.RemoveAll(r.folder(c.Args().First())) // half of one
		}
		return err
	}
	if k.alive() && k.status() != "created" && !c.Bool("force") {
		return fmt.Errorf("container %s is running", k.ID)
	}
	if err := r.end(c.Context, k); err != nil {
		return err
	}
	return r.forget(k)
}

// end kills what there is of a container.
func (r *runtime) end(ctx context.Context, k *container) error {
	if !k.alive() {
		return nil
	}
	var err error
	switch {
	case k.Pod:
		err = unix.Kill(k.PID, unix.SIGKILL)
	case k.Begun:
		_, err = r.ask(ctx, "kill", k.ref(), "--reason", "the container engine")
	default:
		err = unix.Kill(k.PID, unix.SIGTERM) // it waits, and has no process
	}
	for began := time.Now(); k.alive(); time.Sleep(5 * time.Millisecond) {
		switch waited := time.Since(began); {
		case waited > answerTime:
			return errors.Join(fmt.Errorf("container %s doesn't end", k.ID), err)
		case err != nil && waited > launchTime:
			_ = unix.Kill(k.PID, unix.SIGKILL) // its death is the run's
		}
	}
	return nil
}

func (r *runtime) forget(k *container) error {
	if spec, err := loadBundle(k.dir); err == nil {
		if err := k.hooks(spec, "poststop"); err != nil {
			r.tell(err) // the container is gone all the same
		}
	}
	return os.RemoveAll(k.dir)
}

func (r *runtime) list(c *cli.Context) error {
	dirs, _ := os.ReadDir(r.root)
	all := []told{}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if !c.Bool("quiet") && c.String("format") != "json" {
		fmt.Fprintln(w, "ID\tPID\tSTATUS\tBUNDLE\tCREATED\tOWNER\tRING")
	}
	for _, d := range dirs {
		k, err := r.load(d.Name())
		switch {
		case err != nil:
		case c.Bool("quiet"):
			fmt.Fprintln(w, k.ID)
		case c.String("format") == "json":
			all = append(all, k.told())
		default:
			s := k.told()
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%d\n", s.ID, s.PID, s.Status, s.Bundle, s.Created.Format(time.RFC3339), s.Owner, k.Ring)
		}
	}
	if c.String("format") == "json" {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	return w.Flush()
}

// exec is a further command in the container, confined as its first one. The process that the engine waits for is agentrun's.
func (r *runtime) exec(c *cli.Context) error {
	k, err := r.loadRun(c.Args().First())
	if err != nil {
		return err
	}
	if k.status() != "running" {
		return fmt.Errorf("container %s is %s", k.ID, k.status())
	}
	if c.Int("preserve-fds") > 0 {
		return errFDs
	}
	p := specs.Process{Args: c.Args().Tail(), Env: c.StringSlice("env"), Cwd: c.String("cwd"), Terminal: c.Bool("tty")}
	if at := c.String("process"); at != "" {
		text, err := os.ReadFile(at)
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err != nil {
			return fmt.Errorf("--process: %w", err)
		}
	}
	if len(p.Args) == 0 {
		return errors.New("which command?")
	}
	words := []string{"exec", "--in", k.ref(), "--env-fd", "3"}
	if p.Cwd != "" && there(p.Cwd) {
		words = append(words, "--cwd", p.Cwd)
	}
	words = append(words, "-i")
	cmd := exec.Command(r.program)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	finish := func() {}
	if p.Terminal {
		if c.Bool("detach") && c.String("console-socket") == "" {
			return errors.New("--tty --detach: want --console-socket, which the terminal is given to")
		}
		slave, master, err := terminal(c.String("console-socket"), p.ConsoleSize)
		if err != nil {
			return err
		}
		defer slave.Close()
		if master != nil {
			finish = func() { slave.Close(); relay(master)() }
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr.Setctty = slave, slave, slave, true
		words = append(words, "-t")
	}
	cmd.Args = slices.Concat(cmd.Args, words, []string{"--"}, p.Args)
	tell, err := passed(cmd, p.Env)
	if err != nil {
		return err
	}
	err = cmd.Start()
	tell()
	if err != nil {
		return err
	}
	if err := tellPID(c.String("pid-file"), cmd.Process.Pid); err != nil {
		return err
	}
	if c.Bool("detach") {
		return cmd.Process.Release()
	}
	defer passOn(func(s syscall.Signal) { _ = cmd.Process.Signal(s) })()
	finish()
	err = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitCode(128 + int(ws.Signal()))
	}
	if code := cmd.ProcessState.ExitCode(); code > 0 {
		return exitCode(code)
	}
	return err
}

func (r *runtime) ps(c *cli.Context) error {
	k, err := r.load(c.Args().First())
	if err != nil {
		return err
	}
	pids, err := r.processes(c.Context, k)
	if err != nil {
		return err
	}
	if c.String("format") == "json" {
		return json.NewEncoder(os.Stdout).Encode(pids)
	}
	for _, p := range pids {
		fmt.Println(p)
	}
	return nil
}

func (r *runtime) processes(ctx context.Context, k *container) (pids []int, err error) {
	if k.Pod {
		return []int{k.PID}, nil // containerd asks after a restart
	}
	text, err := r.ask(ctx, "inspect", "--json", k.ref())
	if err != nil {
		return nil, err
	}
	var s struct {
		Processes []struct {
			PID int `json:"pid"`
		} `json:"processes"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	pids = []int{}
	for _, p := range s.Processes {
		pids = append(pids, p.PID)
	}
	return pids, nil
}

func (r *runtime) update(c *cli.Context) error {
	k, err := r.loadRun(c.Args().First())
	if err != nil {
		return err
	}
	var text []byte
	if at := c.String("resources"); at == "-" || at == "" {
		text, err = io.ReadAll(io.LimitReader(os.Stdin, maxBundle))
	} else {
		text, err = os.ReadFile(at)
	}
	var res specs.LinuxResources
	if err == nil {
		err = json.Unmarshal(text, &res)
	}
	if err != nil {
		return fmt.Errorf("--resources: %w", err)
	}
	words := limits(&res)
	if len(words) == 0 {
		return nil
	}
	_, err = r.ask(c.Context, append([]string{"update", k.ref()}, words...)...)
	return err
}

// event has runc's names, in runc's order.
type event struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Data any    `json:"data"`
}

// events tells what a container uses, in the words of runc's, until it ends.
func (r *runtime) events(c *cli.Context) error {
	k, err := r.loadRun(c.Args().First())
	if err != nil {
		return err
	}
	if k.status() == "stopped" {
		return fmt.Errorf("container %s is stopped", k.ID)
	}
	for k.alive() {
		text, err := r.ask(c.Context, "inspect", "--json", k.ref())
		if !k.alive() {
			break
		}
		if err != nil {
			return err
		}
		var s struct {
			Usage struct {
				CPU    int64 `json:"cpu_time_ns"`
				Memory int64 `json:"memory_bytes"`
				Peak   int64 `json:"memory_peak_bytes"`
				PIDs   int64 `json:"pids"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		err = json.NewEncoder(os.Stdout).Encode(event{"stats", k.ID, map[string]any{
			"cpu": map[string]any{"usage": map[string]int64{"total": s.Usage.CPU}}, "pids": map[string]int64{"current": s.Usage.PIDs},
			"memory": map[string]any{"usage": map[string]int64{"usage": s.Usage.Memory, "max": s.Usage.Peak}},
		}})
		if err != nil || c.Bool("stats") {
			return err
		}
		for next := time.Now().Add(c.Duration("interval")); k.alive() && time.Now().Before(next); time.Sleep(min(50*time.Millisecond, time.Until(next))) {
		}
	}
	return nil
}

func features(*cli.Context) error {
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ociVersionMin": "1.0.0", "ociVersionMax": specVersion,
		"hooks":        []string{"prestart", "createRuntime", "poststart", "poststop"},
		"mountOptions": []string{"bind", "rbind", "ro", "rw"},
		"linux":        map[string]any{"namespaces": []string{"cgroup", "ipc", "mount", "network", "pid", "uts"}, "capabilities": []string{}},
	})
}
