// SPDX-License-Identifier: Apache-2.0

// Package toolcmd runs the operator's programs for the tools of a run (M-12). Each call gets a sandbox of its own, which belongs to the
// run (H-15): limited, on record, gone with the call. The gateway names the tool; which program that is comes from the configuration
// that it read before anything of the agent's was there, and is told once.
package toolcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"agentrun/toolproxy/link"
)

// Commands are those of one run. Announce fills them before anything of the agent's was read, and the gateway
// that asks for one later may have been taken over by then: it can name a tool, and has no say in program,
// arguments, ring or folder.
type Commands struct {
	// Run carries a command out, and returns when nothing of it is left: its exit code, and what else there is to say of its end ("" if
	// it just exited). The end of the context kills it.
	Run func(ctx context.Context, cmd link.Command, stdin, stdout *os.File) (code int, why string)

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

// errClosed ends a command whose caller has gone.
var errClosed = errors.New("the call has ended")

// Execute starts the program of a tool. It lives until Close, or its end, whatever becomes of ctx.
func (c *Commands) Execute(_ context.Context, tool string) (link.Process, error) {
	c.mu.Lock()
	cmd, ok := c.byTool[tool]
	c.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("tool %.64q: no command was announced for it", tool)
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), stdin.Close())
	}
	ctx, kill := context.WithCancelCause(context.Background())
	p := &process{stdin: stdin, stdout: stdout, kill: kill, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.code, p.why = c.Run(ctx, cmd, in, out)
		in.Close()
		out.Close() // the last writer: its reader sees the end of it
	}()
	return p, nil
}

// process is a command that runs. code and why are written before done is closed.
type process struct {
	stdin, stdout *os.File
	kill          context.CancelCauseFunc
	done          chan struct{}
	code          int
	why           string
}

func (p *process) Stdin() *os.File  { return p.stdin }
func (p *process) Stdout() *os.File { return p.stdout }

func (p *process) Wait(ctx context.Context) (int, string, error) {
	select {
	case <-p.done:
		return p.code, p.why, nil
	case <-ctx.Done():
		return 0, "", context.Cause(ctx)
	}
}

// Close kills it. Nobody reads its output any more: one that floods would else wait for a reader.
func (p *process) Close() error {
	p.kill(errClosed)
	_ = p.stdin.Close()
	_ = p.stdout.Close()
	<-p.done
	return nil
}
