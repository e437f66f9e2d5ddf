// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/images"
	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/sibling"
	"agentrun/internal/verb"
	"agentrun/supervisor"
)

func imageCommand(g *global) *cli.Command {
	platform := &cli.StringFlag{Name: "platform", Usage: "`OS/ARCH` of the image that is meant", Value: "linux/" + goruntime.GOARCH}
	return &cli.Command{
		Name:  "image",
		Usage: "container images, whose roots runs begin in (exec --image)",
		Description: `   agentrun image pull python:3.12-slim
   agentrun image import python.tar --name python:3.12-slim
   agentrun image ls
   agentrun exec --image python:3.12-slim -- agent.py`,
		Subcommands: []*cli.Command{
			{
				Name: "pull", Usage: "fetch one from a registry, with the caller's credentials, and unpack it", ArgsUsage: "NAME",
				Description: `NAME is as docker has it, with a tag or a digest. Credentials are those of docker login, and of its helpers.

   agentrun image pull python:3.12-slim
   agentrun image pull registry.example/team/tools@sha256:…`,
				Flags: []cli.Flag{
					platform, &cli.BoolFlag{Name: "plain-http", Usage: "ask without TLS also where the registry is no loopback address"}, quietFlag(), jsonFlag(),
				},
				Action: verb.Action(func(c *cli.Context, a []string) error {
					return g.bring(c, images.Order{Pull: a[0], Platform: c.String("platform"), PlainHTTP: c.Bool("plain-http")})
				}),
			},
			{
				Name: "import", Usage: "unpack one from a file or a folder", ArgsUsage: "PATH",
				Description: `PATH is an OCI layout, as a folder or a tar, or what docker save writes.

   docker save python:3.12-slim -o python.tar && agentrun image import python.tar`,
				Flags: []cli.Flag{
					platform, &cli.StringFlag{Name: "name", Usage: "call it `NAME`; of more than one image, choose this", DefaultText: "what it is called there"}, quietFlag(), jsonFlag(),
				},
				Action: verb.Action(func(c *cli.Context, a []string) error {
					path, err := g.caller.Abs(a[0])
					if err != nil {
						return err
					}
					return g.bring(c, images.Order{Import: path, Name: c.String("name"), Platform: c.String("platform")})
				}),
			},
			{Name: "ls", Usage: "every image, the newest first", Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.imageList)},
			{Name: "inspect", Usage: "what is known of one", ArgsUsage: "NAME", Action: verb.Action(func(_ *cli.Context, a []string) error {
				i, err := g.Images().Inspect(a[0])
				if err != nil {
					return knownImage("inspect", a[0], err)
				}
				return printJSON(i)
			})},
			{
				Name: "rm", Usage: "take a name away, and the image with its last one", ArgsUsage: "NAME",
				Description: `NAME may be a digest: then the image goes with all its names. One that a live run or a kept sandbox has stays.

   agentrun image rm python:3.12-slim`,
				Action: verb.Action(g.imageRemove),
			},
			{
				Name: "gc", Usage: "remove images without a name, and what killed pulls have left",
				Description: `An image loses its name when another is pulled by it. What live runs and kept sandboxes have stays.

   agentrun image gc`,
				Flags: []cli.Flag{jsonFlag()}, Action: verb.Action(g.imageSweep),
			},
		},
	}
}

func quietFlag() cli.Flag {
	return &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "tell nothing of the progress"}
}

// bring has an image fetched and unpacked, puts that on record, and only then makes it one of the node's.
func (g *global) bring(c *cli.Context, o images.Order) error {
	o.Progress = !c.Bool("quiet")
	i, names, err := g.fetch(c.Context, o)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(images.Info{Image: i, Names: names})
	}
	called := strings.Join(names, ", ")
	if called == "" {
		called = "an image without a name"
	}
	signed := "unsigned"
	if i.SignedBy != "" {
		signed = "signed"
	}
	_, err = fmt.Printf("%s: %s, %d files, %d MiB, %s\n", oneLine(called), i.ID, i.Content.Files, i.Content.Bytes>>20, signed)
	return err
}

func (g *global) fetch(ctx context.Context, o images.Order) (i images.Image, names []string, err error) {
	for _, name := range []string{o.Pull, o.Name} {
		if err := images.CheckName(name); name != "" && err != nil {
			return i, nil, err
		}
	}
	if o.Key, err = g.ImagePolicy.Key(); err != nil {
		return i, nil, err
	}
	o.Allow, o.Owners, o.Agent = g.ImagePolicy.Allow, os.Geteuid() == 0, "agentrun/"+version
	o.Bar = isTerminal(os.Stderr)
	place, err := g.Images().Begin()
	if err != nil {
		return i, nil, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	o.Into = place.Dir
	r, err := unpackBy(ctx, o)
	if err != nil {
		return i, nil, err
	}
	i, change := r.Image, "pulled"
	if o.Import != "" {
		change = "imported"
	}
	i.By, i.Created = operatorName(), time.Now().UTC()
	err = g.imageOnRecord(hypervisor.ImageChange{Change: change, Image: i.ID, Manifest: i.Manifest, Signer: i.SignedBy, Source: i.Source, Names: r.Names})
	if err != nil {
		return i, nil, err
	}
	return i, r.Names, place.Commit(i, r.Names)
}

func (g *global) imageOnRecord(c hypervisor.ImageChange) error {
	c.By = operatorName()
	return g.node(func(h *hypervisor.Hypervisor) error { return h.RecordImage(c) })
}

// maxResult bounds what the other program says.
const maxResult = 1 << 20

// unpackBy has the program that reads strangers' archives carry out an order. It says itself what is wrong, and ends with this process:
// the main goroutine keeps the main thread, whose end its parent-death signal waits for.
func unpackBy(ctx context.Context, o images.Order) (r images.Result, err error) {
	path, err := sibling.Find(images.Program)
	if err != nil {
		return r, hinted.New(err, images.Program+" comes with agentrun: install both, in a folder that only root may write")
	}
	order, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	// Its place is taken away again also where somebody ends this.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path) //nolint:gosec // found where only root may write
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(order), &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.ExitCode() == ending.Failed {
			return r, exitError(ending.Failed)
		}
		return r, fmt.Errorf("%s: %w", images.Program, err)
	}
	if out.Len() > maxResult {
		return r, fmt.Errorf("%s: an answer of %d bytes", images.Program, out.Len())
	}
	if err := read.Exactly(bytes.TrimSpace(out.Bytes()), &r); err != nil {
		return r, fmt.Errorf("%s: %w", images.Program, err)
	}
	return r, nil
}

func (g *global) imageList(c *cli.Context, _ []string) error {
	list, err := g.Images().List()
	perr := printList(c, list, "NAME\tID\tPLATFORM\tMIB\tSIGNED\tLIVE\tCREATED", list, func(i images.Info) []any {
		return []any{strings.Join(i.Names, ", "), i.ID[:len("sha256:")+12], i.Platform, i.Content.Bytes >> 20, i.SignedBy != "", i.Live, i.Created}
	})
	return errors.Join(err, perr)
}

// knownImage turns what is wrong with an image's name into an error with a way out.
func knownImage(doing, ref string, err error) error {
	switch {
	case errors.Is(err, images.ErrNone), errors.Is(err, images.ErrMany):
		err = hinted.New(err, "agentrun image ls lists those there are")
	case errors.Is(err, images.ErrBusy):
		err = hinted.New(err, "agentrun ps lists live runs; rm takes it away when they are over")
	}
	return fmt.Errorf("image %s %.200q: %w", doing, ref, err)
}

// keptOf is a kept sandbox that has the image; empty: none.
func (g *global) keptOf(id string) (string, error) {
	list, err := g.Sandboxes().List()
	for _, s := range list {
		if s.Image == id {
			return s.Name, nil
		}
	}
	return "", err
}

func (g *global) imageRemove(_ *cli.Context, a []string) error {
	if err := g.enter(); err != nil { // an ordinary user's files may be the user's other ids'
		return err
	}
	gone, err := g.Images().Remove(a[0], func(i images.Image, whole bool) error {
		change := "untagged"
		if whole {
			change = "removed"
			if kept, err := g.keptOf(i.ID); err != nil || kept != "" {
				if err == nil {
					err = hinted.New(fmt.Errorf("the kept sandbox %s has it", kept), "agentrun rm "+kept+" removes that")
				}
				return err
			}
		}
		return g.imageOnRecord(hypervisor.ImageChange{Change: change, Image: i.ID, Names: a})
	})
	if err != nil {
		return knownImage("rm", a[0], err)
	}
	what := "removed image"
	if !gone {
		what = "removed the name"
	}
	_, err = fmt.Println(what, oneLine(a[0]))
	return err
}

func (g *global) imageSweep(c *cli.Context, _ []string) error {
	if err := g.enter(); err != nil {
		return err
	}
	removed, err := g.Images().Sweep(func(i images.Info) bool {
		kept, kerr := g.keptOf(i.ID)
		return len(i.Names) == 0 && kept == "" && kerr == nil
	}, func(i images.Image) error {
		return g.imageOnRecord(hypervisor.ImageChange{Change: "removed", Image: i.ID})
	})
	if c.Bool("json") {
		if removed == nil {
			removed = []string{}
		}
		return errors.Join(err, printJSON(map[string]any{"removed": removed}))
	}
	for _, id := range removed {
		fmt.Println("removed", id)
	}
	return err
}

// pullMissing brings the image of an exec that says so, as its caller, and begins the exec anew without these words: a daemon may take it.
func (g *global) pullMissing(c *cli.Context, r *supervisor.Request) error {
	if c.String("pull") != "missing" || len(r.Malformed) > 0 {
		return nil
	}
	if g.served {
		return errors.New("--pull: a daemon pulls nothing for others")
	}
	if _, err := g.Images().Resolve(r.Image); errors.Is(err, images.ErrNone) {
		_, _, err = g.fetch(c.Context, images.Order{Pull: r.Image, Platform: "linux/" + goruntime.GOARCH, Progress: g.caller.Watched})
		if err != nil {
			return err
		}
	} else if err != nil {
		return knownImage("pull", r.Image, err)
	}
	return os.NewSyscallError("execve", unix.Exec("/proc/self/exe", withoutPull(os.Args), g.caller.Environ))
}

func withoutPull(args []string) []string {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	var rest []string
	for i := 0; i < end; i++ {
		switch args[i] {
		case "--pull", "-pull":
			i++
		case "--pull=missing", "-pull=missing":
		default:
			rest = append(rest, args[i])
		}
	}
	return append(rest, args[end:]...)
}
