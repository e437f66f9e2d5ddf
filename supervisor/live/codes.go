// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"agentrun/internal/sibling"
	"agentrun/safetyloop"
)

// Codes says where codes of safety loops are shown, beside the control socket, which always does (S-10). The zero value: nowhere else.
type Codes struct {
	Terminal   string `yaml:"show_codes_on"` // a terminal of an operator's, as /dev/pts/3
	Webhook    string `yaml:"webhook"`       // https, or http on the loopback
	WebhookKey string `yaml:"webhook_key"`   // path of the key that signs what is posted; goes with Webhook
}

// codeChannel shows codes by a process of agentrun-safety each: it has the TLS that agentrun doesn't carry around, and a terminal that
// hangs, or a far host that lies, meets a process of its own. A code goes there through a pipe.
type codeChannel struct {
	program string
	codes   Codes
	warn    func(error)
}

// checkTime bounds the look at the channels.
const checkTime = 10 * time.Second

// open returns the channels, once they could be used; the error is what is wrong with them. warn is told when one doesn't work later.
func (c Codes) open(warn func(error)) ([]safetyloop.Channel, error) {
	if c == (Codes{}) {
		return nil, nil
	}
	program, err := sibling.Find(safetyloop.ShowProgram)
	if err != nil {
		return nil, fmt.Errorf("configuration: safety: %w", err)
	}
	ch := codeChannel{program, c, warn}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	if err := ch.run(ctx, nil, "--check"); err != nil {
		return nil, fmt.Errorf("configuration: safety: %w", err)
	}
	return []safetyloop.Channel{ch}, nil
}

// Show implements safetyloop.Channel.
func (c codeChannel) Show(ctx context.Context, ch safetyloop.Challenge) error {
	text, err := json.Marshal(ch.Shown())
	if err != nil {
		return errors.New("encode the challenge") // the cause might have the code in it
	}
	if err = c.run(ctx, text); err != nil {
		c.warn(fmt.Errorf("challenge %s is shown on the control socket only: %w", ch.ID, err)) // its error has no code
	}
	return err
}

func (c codeChannel) run(ctx context.Context, text []byte, more ...string) error {
	args := append(safetyloop.ShowArgs(c.codes.Terminal, c.codes.Webhook, c.codes.WebhookKey), more...)
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdin = bytes.NewReader(text)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the agent's
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", safetyloop.ShowProgram, err, strings.TrimSpace(said.String()))
	}
	return nil
}
