// SPDX-License-Identifier: Apache-2.0

// Package toolcmd runs the operator's programs for the tools of a run (M-12). Each call gets a sandbox of its own, as a run of its
// own: limited, on record, gone with the call. The gateway names the tool; which program that is comes from the configuration that it
// read before anything of the agent's was there, and is told once.
package toolcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"agentrun/runtime"
	"agentrun/toolproxy/link"
)

// Options say for which run the programs are, and where theirs run.
type Options struct {
	Node    []string // flags of agentrun that name the node
	RunDir  string
	Gateway string // --gateway and --policy of the run, of which whatever it starts is asked as well (M-9)
	Policy  string
	Run     string   // its id
	Env     []string // of agentrun itself: a run that waited for another to let it in could wait for itself
	Dir     string   // working folder; empty: this process's own
}

// Commands are those of one run. Announce fills them before anything of the agent's was read, and the gateway
// that asks for one later may have been taken over by then: it can name a tool, and has no say in program,
// arguments, ring or folder.
type Commands struct {
	Options Options

	mu     sync.Mutex
	byTool map[string]link.Command
}

// Announce takes the programs from the configuration that the gateway read. It comes once, before anything of the agent's.
func (c *Commands) Announce(list []link.Command) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byTool = map[string]link.Command{}
	for _, cmd := range list {
		if cmd.Tool == "" || len(cmd.Argv) == 0 || !filepath.IsAbs(cmd.Argv[0]) {
			return fmt.Errorf("command of tool %.64q: no absolute path of a program", cmd.Tool)
		}
		if cmd.Ring != 0 && cmd.Ring != 2 && cmd.Ring != 3 {
			return fmt.Errorf("command of tool %.64q: ring %d, want 2 or 3", cmd.Tool, cmd.Ring)
		}
		c.byTool[cmd.Tool] = cmd
	}
	return nil
}

// args are those of agentrun for one command. Each value stands behind a flag of its own and the command
// behind "--": nothing of the configuration can be taken for a flag that it isn't.
func (c *Commands) args(cmd link.Command, status string) []string {
	ring := cmd.Ring
	if ring == 0 {
		ring = 3
	}
	args := append(c.Options.Node[:len(c.Options.Node):len(c.Options.Node)],
		"exec", "--ring", fmt.Sprint(ring), "-i", "--status-file", status)
	if cmd.Profile != "" {
		args = append(args[:len(args):len(args)], "--profile", cmd.Profile)
	}
	gateway := c.Options.Gateway // for its policies alone
	if len(cmd.Allow) > 0 {
		gateway = "" // with a way out it would have the run's tools, and could call itself
	}
	for _, f := range [...]struct{ flag, value string }{
		{"--gateway", gateway}, {"--policy", c.Options.Policy},
		{"--memory", cmd.Memory}, {"--timeout", cmd.Timeout}, {"--workspace", cmd.Workspace},
	} {
		if f.value != "" {
			args = append(args, f.flag, f.value)
		}
	}
	for _, v := range cmd.Env {
		args = append(args, "--env", v)
	}
	for _, v := range cmd.ROBind {
		args = append(args, "--ro-bind", v)
	}
	if len(cmd.Allow) == 0 {
		// A tool that calls tools would be a loop; and it reports no steps, whatever its profile says of agents.
		args = append(args, "--no-gateway", "--safety", "disabled", "--require-intent=false")
	}
	for _, v := range cmd.Allow {
		args = append(args, "--allow", v)
	}
	return append(append(args, "--"), cmd.Argv...)
}

// Execute starts the program of a tool.
func (c *Commands) Execute(_ context.Context, tool string) (link.Process, error) {
	c.mu.Lock()
	cmd, ok := c.byTool[tool]
	c.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("tool %.64q: no command was announced for it", tool)
	}
	// Within the run's folder, which the next start removes should we be killed.
	dir, err := os.MkdirTemp(filepath.Join(c.Options.RunDir, "sandboxes", c.Options.Run), "tool-*")
	if err != nil {
		return nil, err
	}
	p := &toolProcess{dir: dir, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Its parent-death signal is tied to this thread: with us, it dies.
		goruntime.LockOSThread()
		err := p.start(c.Options, c.args(cmd, p.statusFile()))
		started <- err
		if err == nil {
			p.wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("tool %.64q: %w", tool, err), os.RemoveAll(dir))
	}
	return p, nil
}

type toolProcess struct {
	dir           string
	cmd           *exec.Cmd
	stdin, stdout *os.File
	done          chan struct{}
	code          int
	why           string
	kill          sync.Once
}

func (p *toolProcess) statusFile() string { return filepath.Join(p.dir, "status.json") }

// start starts agentrun for the program, on the thread of the caller. Our copies of the child's ends are
// closed at once: the end of its output is seen when the last writer is gone, and one of those would be us.
func (p *toolProcess) start(o Options, args []string) error {
	in, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return errors.Join(err, in.Close(), stdin.Close())
	}
	p.cmd = exec.Command("/proc/self/exe", args...) //nolint:gosec // this program, with what the operator's configuration says
	p.cmd.Stdin, p.cmd.Stdout = in, out
	p.cmd.Env, p.cmd.Dir = o.Env, o.Dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	err = p.cmd.Start()
	in.Close()
	out.Close()
	if err != nil {
		return errors.Join(err, stdin.Close(), stdout.Close())
	}
	p.stdin, p.stdout = stdin, stdout
	return nil
}

// wait takes the account of the sandbox when its agentrun has ended. The exit code alone couldn't tell a
// program's 125 from a sandbox that never started, so the status file counts; one that is missing or broken
// is a failure, whatever the code is. The folder goes before done is closed: who has waited finds nothing
// left of the call.
func (p *toolProcess) wait() {
	defer close(p.done) // the last, behind the folder's removal
	err := p.cmd.Wait()
	p.code = p.cmd.ProcessState.ExitCode()
	b, rerr := os.ReadFile(p.statusFile())
	var s runtime.Status
	switch {
	case rerr == nil && json.Unmarshal(b, &s) == nil:
		p.code, p.why = s.ExitCode, string(s.State)
		if s.State == runtime.Exited || s.State == runtime.Signaled {
			p.why = ""
		}
	case errors.Is(rerr, fs.ErrNotExist) || rerr == nil:
		p.why = "failed: no account of how it ended"
	default:
		p.why = "failed: " + rerr.Error()
	}
	if err != nil && p.why == "" && p.code == 0 {
		p.why = "failed: " + err.Error()
	}
	_ = os.RemoveAll(p.dir)
}

func (p *toolProcess) Stdin() *os.File  { return p.stdin }
func (p *toolProcess) Stdout() *os.File { return p.stdout }

func (p *toolProcess) Wait(ctx context.Context) (int, string, error) {
	select {
	case <-p.done:
		return p.code, p.why, nil
	case <-ctx.Done():
		return 0, "", context.Cause(ctx)
	}
}

// Close ends it as an operator would, twice: the second SIGTERM ends the grace time that the first begins. Its own agentrun
// then leaves nothing behind. Nobody reads its output any more: with an end of that pipe still open here, a command that floods would
// keep its agentrun writing until it is killed, and then its folder and cgroup stay.
func (p *toolProcess) Close() error {
	p.kill.Do(func() {
		_ = p.stdin.Close()
		_ = p.stdout.Close()
		for i := range 50 {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-p.done:
				return
			case <-time.After(time.Duration(20*(i+1)) * time.Millisecond):
			}
		}
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	<-p.done
	return nil
}
