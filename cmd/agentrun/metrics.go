// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/verb"
	"agentrun/supervisor/daemon"
)

func metricsCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "metrics",
		Usage: "print the node's metrics once",
		Description: `The numbers of all runs of the node, whichever process supervised them, in the text format of Prometheus. With a
daemon (agentrun serve), which can serve them by itself, its queue and pool are among them.

   agentrun metrics
   agentrun metrics --textfile /var/lib/node_exporter/textfile_collector/agentrun.prom`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "textfile", Usage: "write them to `FILE` instead, at once and whole, for node_exporter's textfile collector"},
		},
		Action: verb.Action(g.metrics),
	}
}

func (g *global) metrics(c *cli.Context, _ []string) error {
	text, err := g.nodeMetrics(c)
	if err != nil {
		return err
	}
	if c.IsSet("textfile") {
		if err := writeWhole(c.String("textfile"), text); err != nil {
			return fmt.Errorf("--textfile: %w", err)
		}
		return nil
	}
	_, err = os.Stdout.Write(text)
	return err
}

// nodeMetrics asks the daemon, if there is one, which knows more than what lies in the state folder.
func (g *global) nodeMetrics(c *cli.Context) ([]byte, error) {
	d, err := control.Open(g.RunDir, daemon.ControlName)
	if err == nil {
		var text []byte
		if text, err = d.Text(c.Context, "/metrics"); err == nil {
			return text, nil
		}
	}
	if e, ok := errors.AsType[*control.Error](err); !ok || e.Code != control.CodeNotFound {
		return nil, err
	}
	var b bytes.Buffer
	err = g.Node.Metrics(&b)
	return b.Bytes(), err
}

// writeWhole puts a file where a reader never sees half of it. Everybody may read it: a collector is another user.
func writeWhole(name string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".agentrun-*") // the collector reads *.prom alone
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = io.Copy(f, bytes.NewReader(text))
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
