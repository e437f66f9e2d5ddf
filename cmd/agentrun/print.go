// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
)

// onNode makes an action of do, which gets this node's hypervisor and the arguments that the command takes.
// What do decided is on disk when the action returns nil.
func (g *global) onNode(do func(c *cli.Context, h *hypervisor.Hypervisor, a []string) error) cli.ActionFunc {
	return verb.Action(func(c *cli.Context, a []string) error {
		return g.node(func(h *hypervisor.Hypervisor) error { return do(c, h, a) })
	})
}

// node runs do on this node's hypervisor. What do decided is on disk when node returns nil.
func (g *global) node(do func(*hypervisor.Hypervisor) error) error {
	h, err := g.Open()
	if err != nil {
		return err
	}
	return errors.Join(do(h), h.Close())
}

func jsonFlag() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }

func printJSON(v any) error { return verb.WriteJSON(os.Stdout, v) }

// printLine prints v as JSON on one line.
func printLine(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Println(shown.Line(string(line)))
	return err
}

// printResult prints v as JSON if --json was given, else as the format says.
func printResult(c *cli.Context, v any, format string, a ...any) error {
	if c.Bool("json") {
		return printJSON(v)
	}
	_, err := fmt.Printf(format, safe(a)...)
	return err
}

// printList prints v as JSON if --json was given, else a table: its heads, with tabs between them, and what
// row returns for each of list.
func printList[E any](c *cli.Context, v any, heads string, list []E, row func(E) []any) error {
	if c.Bool("json") {
		return printJSON(v)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, heads)
	for _, e := range list {
		cells := safe(row(e))
		fmt.Fprintf(w, strings.Repeat("%v\t", len(cells)-1)+"%v\n", cells...)
	}
	return w.Flush()
}

// safe makes values fit for a terminal, whoever chose the texts among them. Times are written as RFC 3339.
func safe(values []any) []any {
	for i, v := range values {
		if at, ok := v.(time.Time); ok {
			values[i] = at.Format(time.RFC3339)
		} else if reflect.ValueOf(v).Kind() == reflect.String {
			values[i] = shown.Line(fmt.Sprint(v))
		}
	}
	return values
}
