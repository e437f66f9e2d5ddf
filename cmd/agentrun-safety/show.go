// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/safetycmd"
	"agentrun/safetyloop"
	"agentrun/telemetry"
)

// maxShown bounds what a supervisor sends: a hint is shortened before.
const maxShown = 64 << 10

// showCode shows one code for the supervisor of a sandbox, which has no TLS (S-10). The supervisor is its parent, so a terminal that
// the run was started from is refused: the agent may have it.
func showCode(ctx context.Context, args []string) error {
	app := &cli.App{
		Name: safetycmd.Program, Writer: os.Stderr, ErrWriter: os.Stderr, Flags: safetycmd.ShowFlags(), HideHelpCommand: true,
		ExitErrHandler: func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			d := &dongle{log: slog.New(slog.DiscardHandler), o: serveOptions{
				stdio: true, terminal: c.String("show-codes-on"), webhook: c.String("webhook"), key: c.String("webhook-key"),
			}}
			channels, err := d.channels()
			defer func() { _ = d.close() }() // what it wrote is out, or told
			if err != nil || c.Bool("check") {
				return err
			}
			var s safetyloop.Shown
			if json.NewDecoder(io.LimitReader(os.Stdin, maxShown)).Decode(&s) != nil || s.Code == "" {
				return errors.New("standard input has no challenge") // the decoder's error would quote it
			}
			s.Challenge.Code = telemetry.NewPlaintext(s.Code)
			var errs []error
			for _, ch := range channels {
				errs = append(errs, ch.Show(c.Context, s.Challenge))
			}
			return errors.Join(errs...)
		},
	}
	return app.RunContext(ctx, args)
}
