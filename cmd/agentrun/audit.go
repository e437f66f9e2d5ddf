// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/audit"
	"agentrun/audit/heads"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/supervisor"
)

// exitBroken is the exit code of `audit verify` and `audit checkpoint` for a chain that is not what was written. 125 stays
// for "couldn't be checked": a script must be able to tell tampering from a missing file.
const exitBroken = 1

func auditCommand(g *global) *cli.Command {
	a := auditCLI{g}
	json := &cli.BoolFlag{Name: "json", Usage: "print JSON"}
	pick := func(more ...cli.Flag) []cli.Flag {
		return append([]cli.Flag{
			&cli.StringFlag{Name: "chain", Usage: "`NAME` of the chain: node, or session-ID", DefaultText: audit.NodeChain},
			&cli.StringFlag{Name: "session", Usage: "the chain of the session `ID`"},
		}, more...)
	}
	filter := []cli.Flag{
		&cli.StringFlag{Name: "since", Usage: "entries from `TIME` on: RFC 3339, or how long ago, as 90m"},
		&cli.StringFlag{Name: "until", Usage: "entries before `TIME`"},
	}
	return &cli.Command{
		Name:  "audit",
		Usage: "read and verify what was recorded",
		Description: `Every decision, every start and end of a sandbox and every refused call stands in a chain of hashes: one for
   the node, one for each session. docs/audit.md has the format.

   agentrun audit tail -f                            what happens now
   agentrun audit show --kind refusal --since 1h     refused calls of the last hour
   agentrun audit verify --all                       0: sound, 1: broken (which entry, and how), 125: couldn't check
   agentrun audit checkpoint > node.note             sign the chain's present end; keep it on another machine`,
		Subcommands: []*cli.Command{
			{Name: "tail", Usage: "the last entries", Flags: pick(json,
				&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Usage: "how many", Value: 10},
				&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with new ones as they come"}),
				Action: a.tail},
			{Name: "show", Usage: "entries by number, kind, agent or time", ArgsUsage: "[SEQ…]", Flags: pick(append(filter, json,
				&cli.StringSliceFlag{Name: "kind", Usage: "only this `KIND` (may be given more than once)"},
				&cli.StringFlag{Name: "agent", Usage: "only about the agent `ID`"})...),
				Action: a.show},
			{Name: "verify", Usage: "is the chain what was written?", Flags: pick(json,
				&cli.BoolFlag{Name: "all", Usage: "every chain that has a log or a checkpoint"},
				&cli.StringSliceFlag{Name: "checkpoint", Usage: "hold it also against the signed note in `FILE`"},
				&cli.StringFlag{Name: "key", Usage: "verifier `KEY` of the checkpoints (default: this node's)"}),
				Action: a.verify},
			{Name: "export", Usage: "entries as JSON Lines, byte for byte as they were written",
				Flags: pick(filter...), Action: verb.Action(a.export)},
			{Name: "checkpoint", Usage: "verify, sign the present end, store and print the note", Flags: pick(json,
				&cli.BoolFlag{Name: "accept-loss", Usage: "sign what is there although signed entries are gone; the loss goes on record"}),
				Action: a.checkpoint},
			{Name: "key", Usage: "the verifier key of this node's checkpoints", Flags: []cli.Flag{json},
				Action: a.key},
		},
	}
}

type auditCLI struct{ g *global }

func (a auditCLI) logs() string        { return filepath.Join(a.g.StateDir, "audit") }
func (a auditCLI) checkpoints() string { return filepath.Join(a.g.StateDir, "checkpoints") }
func (a auditCLI) keys() string        { return filepath.Join(a.g.StateDir, "keys") }
func (a auditCLI) heads() heads.State  { return heads.State{Dir: a.g.StateDir} }

// chainFlag is the chain that is named. One that stands among the arguments would be taken for the node's: its loss would be accepted.
func chainFlag(c *cli.Context) (string, error) {
	chain, session := c.String("chain"), c.String("session")
	switch {
	case c.NArg() > 0 && c.Command.ArgsUsage == "":
		return "", hinted.New(fmt.Errorf("%s takes no arguments", c.Command.HelpName), c.Command.HelpName+" --chain "+c.Args().First())
	case chain != "" && session != "":
		return "", hinted.New(errors.New("--chain and --session both name a chain"), "--session ID is --chain session-ID")
	case session != "":
		return audit.SessionChain(session), nil
	case chain == "":
		return audit.NodeChain, nil
	}
	return chain, nil
}

// auditError adds the way out.
func auditError(err error) error {
	var mode *audit.ModeError
	var damaged *audit.DamagedError
	switch {
	case errors.As(err, &mode):
		return hinted.New(err, fmt.Sprintf("look who could read or change it, then: chmod %o %s", mode.Want.Perm(), mode.Path))
	case errors.As(err, &damaged):
		return hinted.New(err, "agentrun audit verify --all says what is wrong; the files are left as they are")
	case errors.Is(err, fs.ErrNotExist):
		return hinted.New(err, "agentrun audit verify --all names the chains there are")
	}
	return err
}

// shownEntry is an entry for people and for --json filters, whatever its kind.
type shownEntry struct {
	Chain string         `json:"chain"`
	Data  map[string]any `json:"data"`
	Kind  string         `json:"kind"`
	Seq   int64          `json:"seq"`
	Time  time.Time      `json:"time"`
}

func parseShown(raw []byte) (shownEntry, error) {
	var e shownEntry
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return e, d.Decode(&e)
}

// String writes one line. Identifiers are what agents claimed: what isn't plain is quoted, or an agent could write to the
// operator's terminal.
func (e shownEntry) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %6d %-14s", e.Time.Format("2006-01-02T15:04:05.000Z"), e.Seq, e.Kind)
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		v := e.Data[k]
		if v == nil {
			v = "-"
		}
		text := fmt.Sprint(v)
		if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || !strconv.IsPrint(r) }) {
			text = strconv.QuoteToASCII(text)
		}
		fmt.Fprintf(&b, " %s=%s", k, text)
	}
	return b.String()
}

func (a auditCLI) tail(c *cli.Context) error {
	chain, err := chainFlag(c)
	if err != nil {
		return err
	}
	if c.Int("lines") < 0 {
		return fmt.Errorf("--lines %d: want 0 or more", c.Int("lines"))
	}
	r, err := audit.OpenTail(a.logs(), chain, c.Int("lines"))
	if err != nil {
		return auditError(err)
	}
	defer r.Close()
	for {
		l, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && !c.Bool("follow"):
			return nil
		case errors.Is(err, io.EOF):
			select {
			case <-c.Context.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
		case err != nil:
			return auditError(err)
		default:
			if err := printEntry(c, l); err != nil {
				return err
			}
		}
	}
}

func printEntry(c *cli.Context, l audit.Line) error {
	if c.Bool("json") {
		return printRaw(c, l)
	}
	e, err := parseShown(l.Raw)
	if err != nil {
		return err
	}
	line := e.String()
	if f, ok := c.App.Writer.(*os.File); ok {
		if width, _, is := terminalSize(f); is { // --json has all of it
			line = shown.Clip(line, width)
		}
	}
	_, err = fmt.Fprintln(c.App.Writer, line)
	return err
}

// printRaw prints a line byte for byte, for programs. JSON leaves unescaped what C1 characters and directions do to a terminal,
// so there, and only there, it is spelled out: the same JSON, no more the bytes that were hashed.
func printRaw(c *cli.Context, l audit.Line) error {
	text := string(l.Raw)
	if f, ok := c.App.Writer.(*os.File); ok && isTerminal(f) {
		text = visible(text)
	}
	_, err := fmt.Fprintln(c.App.Writer, text)
	return err
}

// selection is what the filters of show and export say.
type selection struct {
	since, until time.Time
	kinds        []string
	agent        string
	numbers      []int64
}

func newSelection(c *cli.Context) (s selection, err error) {
	now := time.Now()
	if s.since, err = timeFlag(c, "since", now); err != nil {
		return s, err
	}
	if s.until, err = timeFlag(c, "until", now); err != nil {
		return s, err
	}
	s.kinds, s.agent = c.StringSlice("kind"), c.String("agent")
	for _, k := range s.kinds {
		if _, ok := audit.ParseKind(k); !ok {
			names := make([]string, 0, 32)
			for _, k := range audit.Kinds() {
				names = append(names, string(k))
			}
			return s, hinted.New(fmt.Errorf("--kind %q: there is no such kind", k), "kinds: "+strings.Join(names, ", "))
		}
	}
	for _, arg := range c.Args().Slice() {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 0 {
			return s, hinted.New(fmt.Errorf("%q is no number of an entry", arg), c.Command.HelpName+" 17")
		}
		s.numbers = append(s.numbers, n)
	}
	return s, nil
}

func timeFlag(c *cli.Context, name string, now time.Time) (time.Time, error) {
	text := c.String(name)
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, hinted.New(fmt.Errorf("--%s %q: no time", name, text), "as 2026-11-21T07:00:00Z, or how long ago, as 90m")
	}
	return t, nil
}

func (s selection) has(l audit.Line) bool {
	t := l.Entry.Time
	if !s.since.IsZero() && t.Before(s.since) || !s.until.IsZero() && !t.Before(s.until) {
		return false
	}
	if len(s.kinds) > 0 && !slices.Contains(s.kinds, string(l.Entry.Kind)) {
		return false
	}
	if len(s.numbers) > 0 && !slices.Contains(s.numbers, l.Entry.Seq) {
		return false
	}
	if s.agent == "" {
		return true
	}
	e, err := parseShown(l.Raw)
	return err == nil && (e.Data["agent_id"] == s.agent || e.Data["subject"] == s.agent)
}

// each calls do for the entries that the flags select, in order.
func (a auditCLI) each(c *cli.Context, do func(audit.Line) error) error {
	chain, err := chainFlag(c)
	if err != nil {
		return err
	}
	s, err := newSelection(c)
	if err != nil {
		return err
	}
	r, err := audit.OpenReader(a.logs(), chain)
	if err != nil {
		return auditError(err)
	}
	defer r.Close()
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return auditError(err)
		}
		if s.has(l) {
			if err := do(l); err != nil {
				return err
			}
		}
	}
}

func (a auditCLI) show(c *cli.Context) error {
	found := 0
	err := a.each(c, func(l audit.Line) error { found++; return printEntry(c, l) })
	if err == nil && found < c.NArg() {
		return fmt.Errorf("%d of the %d entries asked for are not in the chain", c.NArg()-found, c.NArg())
	}
	return err
}

func (a auditCLI) export(c *cli.Context, _ []string) error {
	return a.each(c, func(l audit.Line) error { return printRaw(c, l) })
}

// chainReport is a Report, or why there is none.
type chainReport struct {
	audit.Report
	Error string `json:"error,omitempty"`
}

func (a auditCLI) verify(c *cli.Context) error {
	chains, err := a.chains(c)
	if err != nil {
		return err
	}
	reports := make([]chainReport, 0, len(chains))
	var failed error
	broken := 0
	for _, chain := range chains {
		r, err := a.verifyChain(c, chain)
		out := chainReport{Report: r}
		if err != nil {
			failed, out.Error = err, err.Error()
		}
		if r.Problem != nil {
			broken++
		}
		reports = append(reports, out)
	}
	if err := printReports(c, reports, broken == 0 && failed == nil); err != nil {
		return err
	}
	if broken > 0 {
		return exitError(exitBroken)
	}
	return failed
}

func (a auditCLI) chains(c *cli.Context) ([]string, error) {
	chain, err := chainFlag(c)
	if !c.Bool("all") || err != nil {
		return []string{chain}, err
	}
	if c.IsSet("chain") || c.IsSet("session") || c.IsSet("checkpoint") {
		return nil, errors.New("--all goes with neither --chain, --session nor --checkpoint")
	}
	list, err := audit.Chains(a.logs(), a.checkpoints())
	signed, serr := a.heads().Signed()
	if serr != nil {
		// What is there is checked all the same, and each chain says that it couldn't be compared with the state.
		return list, err
	}
	list = append(list, signed...)
	slices.Sort(list)
	return slices.Compact(list), err
}

// verifyChain asks once more when something seems to be missing: the first end of a run, its checkpoint and what the state
// remembers of it may have come while they were read one by one.
func (a auditCLI) verifyChain(c *cli.Context, chain string) (audit.Report, error) {
	r, err := a.verifyOnce(c, chain)
	if err == nil && r.Problem != nil && r.Problem.Code == audit.Unsigned {
		r, err = a.verifyOnce(c, chain)
	}
	return r, err
}

func (a auditCLI) verifyOnce(c *cli.Context, chain string) (audit.Report, error) {
	report := audit.Report{Chain: chain}
	opt := audit.VerifyOptions{Home: true}
	// Before the note: a chain's first note is stored before the state has anything of it.
	head, known, stateErr := a.heads().Head(chain)
	if known {
		opt.Remembered = &head
	}
	stored, err := audit.ReadCheckpoint(a.checkpoints(), chain)
	if err == nil {
		opt.Checkpoints = append(opt.Checkpoints, stored)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return report, err
	}
	for _, name := range c.StringSlice("checkpoint") {
		b, err := os.ReadFile(name)
		if err != nil {
			return report, fmt.Errorf("--checkpoint: %w", err)
		}
		opt.Checkpoints = append(opt.Checkpoints, b)
	}
	if opt.Key = c.String("key"); opt.Key == "" && len(opt.Checkpoints) > 0 {
		// Never made here: a new key would call every old signature bad.
		k, err := audit.LoadKey(a.keys())
		if errors.Is(err, fs.ErrNotExist) {
			return report, hinted.New(fmt.Errorf("chain %s has checkpoints, and the key to check them is not on this node: %w", chain, err), "--key KEY, as agentrun audit key printed it")
		}
		if err != nil {
			return report, auditError(err)
		}
		opt.Key = k.Public()
	}
	report, err = audit.Verify(a.logs(), chain, opt)
	if err != nil {
		return report, auditError(fmt.Errorf("chain %s: %w", chain, err))
	}
	if stateErr != nil && (report.Problem == nil || report.Problem.Code == audit.Unsigned) {
		report.Problem, report.Valid = nil, false
		return report, fmt.Errorf("chain %s is sound by itself, but can't be compared with the state: %w", chain, stateErr)
	}
	return report, nil
}

func printReports(c *cli.Context, reports []chainReport, valid bool) error {
	w := c.App.Writer
	if c.Bool("json") {
		return verb.WriteJSON(w, map[string]any{"valid": valid, "chains": reports})
	}
	if len(reports) == 0 {
		_, err := fmt.Fprintln(w, "no chains yet")
		return err
	}
	var b strings.Builder
	for _, r := range reports {
		r.print(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r chainReport) print(w *strings.Builder) {
	switch {
	case r.Error != "":
		fmt.Fprintf(w, "%s: not checked: %s\n", oneLine(r.Chain), oneLine(r.Error))
		return
	case r.Problem != nil:
		fmt.Fprintf(w, "%s: BROKEN: %s\n", oneLine(r.Chain), oneLine(fmt.Sprint(r.Problem)))
		return
	}
	fmt.Fprintf(w, "%s: sound: %d entries, %d of them signed, %d files, %d repairs, head %s\n",
		r.Chain, r.Entries, r.SignedSize, r.Files, r.Repairs, r.Head)
	if r.Losses > 0 {
		fmt.Fprintf(w, "%s: signed anew %d times without the checkpoint it had "+
			"(agentrun audit show --chain %s --kind checkpoint_lost)\n", r.Chain, r.Losses, r.Chain)
	}
	if r.SetBack > 0 {
		fmt.Fprintf(w, "%s: the clock was set back %d times between entries: "+
			"their numbers have the order, not their times\n", r.Chain, r.SetBack)
	}
	if r.SignedSize == 0 && r.Entries > 0 {
		fmt.Fprintf(w, "%s: no checkpoint: a missing end could not be seen "+
			"(agentrun audit checkpoint --chain %s)\n", r.Chain, r.Chain)
	}
}

// signingKey loads the key, or makes it and says so in the node's chain.
func (a auditCLI) signingKey() (*audit.SigningKey, error) {
	k, created, err := audit.LoadOrCreateKey(a.keys())
	if err != nil || !created {
		return k, auditError(err)
	}
	notes := audit.Checkpoints{Dir: a.checkpoints(), Heads: a.heads()}
	if err := notes.Begin(a.logs(), audit.NodeChain); err != nil {
		return nil, auditError(err)
	}
	l, err := audit.Open(a.logs(), audit.NodeChain, audit.Options{})
	if err != nil {
		return nil, auditError(err)
	}
	_, err = l.AppendSync(&audit.Key{Event: "created", KeyID: k.ID(), PublicKey: k.Public(), Purpose: "audit_checkpoint"})
	if cerr := l.Close(); err == nil {
		err = cerr
	}
	return k, auditError(err)
}

func (a auditCLI) checkpoint(c *cli.Context) error {
	chain, err := chainFlag(c)
	if err != nil {
		return err
	}
	k, err := a.signingKey()
	if err != nil {
		return err
	}
	notes := audit.Checkpoints{Dir: a.checkpoints(), Key: k, Heads: a.heads()}
	sign := notes.Write
	if c.Bool("accept-loss") {
		sign = func(logs, chain string) ([]byte, audit.Checkpoint, error) {
			return notes.Accept(logs, chain, fmt.Sprintf("uid:%d", os.Getuid()))
		}
	}
	note, cp, err := sign(a.logs(), chain)
	var broken *audit.BrokenError
	if errors.As(err, &broken) {
		supervisor.Tell(c.App.ErrWriter, "not signed: "+err.Error(), "")
		return exitError(exitBroken)
	}
	if err != nil {
		return auditError(err)
	}
	if c.Bool("json") {
		return verb.WriteJSON(c.App.Writer, map[string]any{
			"chain": cp.Chain, "size": cp.Size, "head": cp.Hash, "time": cp.Time, "key": k.Public(),
			"note": string(note),
		})
	}
	_, err = c.App.Writer.Write(note)
	return err
}

func (a auditCLI) key(c *cli.Context) error {
	k, err := a.signingKey()
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return verb.WriteJSON(c.App.Writer, map[string]any{"key": k.Public(), "id": k.ID()})
	}
	_, err = fmt.Fprintln(c.App.Writer, k.Public())
	return err
}
