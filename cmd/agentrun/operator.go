// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/supervisor"
	"agentrun/witness"
)

func operatorCommand(g *global) *cli.Command {
	key := func() cli.Flag {
		return &cli.StringFlag{Name: "key", Usage: "private key `FILE`, - for stdin (default: agentrun/operator.key in the XDG configuration folder)"}
	}
	operators := func() cli.Flag {
		return &cli.StringFlag{Name: "operators", Usage: "`FILE` with the operators' public keys (default: operators beside the configuration file)", EnvVars: []string{"AGENTRUN_OPERATORS"}}
	}
	return &cli.Command{
		Name:  "operator",
		Usage: "keys of operators, and what they sign for ring 0",
		Description: `What needs ring 0, an agent never gets. An operator signs it: one action on one subject, once, for minutes.

   agentrun operator keygen                              on the operator's machine; prints the line for /etc/agentrun/operators
   agentrun operator sign --action release-quarantine --subject agent:planner-1
   agentrun operator verify agentrun-witness-v1/…        what does it allow, and who signed it?
   agentrun operator list                                whom does this host trust?`,
		Subcommands: []*cli.Command{
			{Name: "keygen", Usage: "make a private key and print its public line",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "out", Usage: "`FILE` for the private key; must not exist (default: as --key of sign)"},
					&cli.StringFlag{Name: "name", Usage: "`NAME` that attestations and the audit show (default: user@host)"},
					jsonFlag(),
				},
				Action: verb.Action(operatorKeygen)},
			{Name: "sign", Usage: "print an attestation",
				Flags: []cli.Flag{
					key(),
					&cli.StringFlag{Name: "action", Usage: "`ACTION` to permit: " + witness.ReleaseQuarantine},
					&cli.StringFlag{Name: "subject", Usage: "`KIND:ID` to permit it for, as agent:planner-1"},
					&cli.DurationFlag{Name: "ttl", Usage: "`TIME` until it expires, at most " + shown.Duration(witness.MaxTTL), Value: witness.DefaultTTL, DefaultText: shown.Duration(witness.DefaultTTL)},
					jsonFlag(),
				},
				Action: verb.Action(operatorSign)},
			{Name: "verify", Usage: "check an attestation without using it", ArgsUsage: "ATTESTATION",
				Flags:  []cli.Flag{operators(), jsonFlag()},
				Action: verb.Action(g.operatorVerify)},
			{Name: "list", Usage: "the operators this host trusts",
				Flags:  []cli.Flag{operators(), jsonFlag()},
				Action: verb.Action(g.operatorList)},
		},
	}
}

func operatorKeygen(c *cli.Context, _ []string) error {
	out, name := c.String("out"), c.String("name")
	if name == "" {
		name = ownName()
	}
	k, err := witness.NewKey(name)
	if err != nil {
		return hinted.New(fmt.Errorf("--name: %w", err), "agentrun operator keygen --name alice")
	}
	if out == "" {
		if out, err = defaultKeyFile(); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(out), 0o700); err != nil {
			return fmt.Errorf("folder of the private key: %w", err)
		}
	}
	if err := k.Create(out); errors.Is(err, fs.ErrExist) {
		return hinted.New(err, "a key is never replaced; keep it, or choose another place with --out")
	} else if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(map[string]string{"key": k.ID(), "verifier": k.Verifier(), "file": out})
	}
	fmt.Fprintf(os.Stderr, "private key in %s; add this line to /etc/agentrun/operators of every host that shall trust it:\n", oneLine(out))
	fmt.Println(k.Verifier())
	return nil
}

// ownName is user@host as far as a name can hold it: a hint for people, the key's hash tells operators apart.
func ownName() string {
	host, _ := os.Hostname()
	user := os.Getenv("SUDO_USER")
	if user == "" {
		user = os.Getenv("USER")
	}
	for _, name := range []string{user + "@" + host, user} {
		if user != "" && witness.ValidName(name) {
			return name
		}
	}
	return "operator"
}

func defaultKeyFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", hinted.New(fmt.Errorf("place for the private key: %w", err), "name it with --out or --key")
	}
	return filepath.Join(dir, "agentrun", "operator.key"), nil
}

func operatorSign(c *cli.Context, _ []string) error {
	example := "agentrun operator sign --action " + witness.ReleaseQuarantine + " --subject agent:ID --ttl 10m"
	for _, flag := range []string{"action", "subject"} {
		if c.String(flag) == "" {
			return hinted.New(fmt.Errorf("sign attestation: --%s is missing", flag), example)
		}
	}
	if c.String("action") != witness.ReleaseQuarantine {
		return hinted.New(fmt.Errorf("sign attestation: --action %.80q: no command takes one, only %s", c.String("action"), witness.ReleaseQuarantine), example)
	}
	k, err := operatorKey(c.String("key"))
	if err != nil {
		return err
	}
	now := time.Now()
	s := witness.Statement{Action: c.String("action"), Subject: c.String("subject"), Nonce: witness.NewNonce(), Expires: now.Add(c.Duration("ttl"))}
	text, err := k.Sign(s, now)
	if err != nil {
		return hinted.New(err, example)
	}
	a := witness.Attestation{Statement: s, Key: k.ID()}
	if c.Bool("json") {
		return printJSON(attestationJSON(a, text))
	}
	fmt.Fprintf(os.Stderr, "signed: %s\n", sentence(a))
	fmt.Println(text)
	return nil
}

func operatorKey(name string) (*witness.Key, error) {
	if name == "-" {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, 4096))
		if err != nil {
			return nil, fmt.Errorf("private key from stdin: %w", err)
		}
		return witness.ParseKey(string(text))
	}
	if name == "" {
		var err error
		if name, err = defaultKeyFile(); err != nil {
			return nil, err
		}
	}
	k, err := witness.LoadKey(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, hinted.New(err, "agentrun operator keygen makes one; --key names another file")
	case errors.Is(err, witness.ErrExposed):
		return nil, hinted.New(err, "a private key is its owner's alone: chmod 600, and no folder above it that others can write")
	}
	return k, err
}

func (g *global) operatorVerify(c *cli.Context, texts []string) error {
	keys, err := g.operators(c)
	if err != nil {
		return err
	}
	a, err := keys.Inspect(texts[0], time.Now())
	if err != nil {
		return hinted.New(err, supervisor.WitnessHint(err))
	}
	return printResult(c, attestationJSON(a, ""), "%s\n", sentence(a))
}

func (g *global) operatorList(c *cli.Context, _ []string) error {
	keys, err := g.operators(c)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(map[string]any{"file": g.operatorsFile(c.String("operators")), "operators": keys.IDs()})
	}
	for _, id := range keys.IDs() {
		fmt.Println(id)
	}
	return nil
}

func sentence(a witness.Attestation) string {
	return fmt.Sprintf("%s of %s, once, until %s, by %s", a.Action, a.Subject, a.Expires.UTC().Format(time.RFC3339), a.Key)
}

func attestationJSON(a witness.Attestation, text string) any {
	return struct {
		Attestation string    `json:"attestation,omitempty"`
		Action      string    `json:"action"`
		Subject     string    `json:"subject"`
		Expires     time.Time `json:"expires"`
		Nonce       string    `json:"nonce"`
		Key         string    `json:"key"`
	}{text, a.Action, a.Subject, a.Expires.UTC().Truncate(time.Second), a.Nonce.String(), a.Key}
}

// operators are the keys this host trusts. Every command that takes an attestation asks here.
func (g *global) operators(c *cli.Context) (witness.Keys, error) {
	keys, err := witness.LoadKeys(g.operatorsFile(c.String("operators")))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return keys, hinted.New(err, "agentrun operator keygen prints the line that belongs into it")
	case errors.Is(err, witness.ErrExposed):
		return keys, hinted.New(err, "whoever can write it can release agents: chown root, chmod go-w, the folders above it too")
	}
	return keys, err
}

// operatorsFile is what was named; else the file beside the configuration file that was named; else the first of the usual places
// that exists, as with the configuration file.
func (g *global) operatorsFile(name string) string {
	if name != "" {
		return name
	}
	if name := os.Getenv("AGENTRUN_OPERATORS"); name != "" { // for commands without the flag
		return name
	}
	if config := g.said.config; config != "" {
		return filepath.Join(filepath.Dir(config), "operators")
	}
	const system = "/etc/agentrun/operators"
	if exists(system) {
		return system
	}
	if dir, err := os.UserConfigDir(); err == nil {
		if own := filepath.Join(dir, "agentrun", "operators"); exists(own) {
			return own
		}
	}
	return system
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
