// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/images"
	"agentrun/internal/ending"
	"agentrun/internal/hinted"
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
					return g.bring(c, "pulled", images.Order{Pull: a[0], Platform: c.String("platform"), PlainHTTP: c.Bool("plain-http")})
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
					return g.bring(c, "imported", images.Order{Import: path, Name: c.String("name"), Platform: c.String("platform")})
				}),
			},
			g.imageShowCommand(),
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
func (g *global) bring(c *cli.Context, change string, o images.Order) error {
	o.Progress = !c.Bool("quiet")
	i, names, err := g.fetch(c.Context, change, o)
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

func (g *global) fetch(ctx context.Context, change string, o images.Order) (images.Image, []string, error) {
	o.Bar = isTerminal(os.Stderr)
	// Its place is taken away again also where somebody ends this.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	i, names, err := g.BringImage(ctx, change, operatorName(), o, os.Stderr)
	if errors.Is(err, supervisor.ErrImageSaid) {
		err = exitError(ending.Failed)
	}
	return i, names, err
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

func (g *global) imageRemove(_ *cli.Context, a []string) error {
	if err := g.enter(); err != nil { // an ordinary user's files may be the user's other ids'
		return err
	}
	gone, err := g.RemoveImage(a[0], operatorName())
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
		kept, kerr := g.ImageKeptBy(i.ID)
		return len(i.Names) == 0 && kept == "" && kerr == nil
	}, func(i images.Image) error {
		return g.RecordImage(hypervisor.ImageChange{By: operatorName(), Change: "removed", Image: i.ID})
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
		_, _, err = g.fetch(c.Context, "pulled", images.Order{Pull: r.Image, Platform: "linux/" + goruntime.GOARCH, Progress: g.caller.Watched})
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
