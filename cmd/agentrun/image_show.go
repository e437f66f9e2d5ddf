// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"agentrun/images"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
)

func (g *global) imageShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "look at one without running it: what it says of itself, a folder's list, a file's content", ArgsUsage: "NAME [PATH]",
		Description: `Links are followed within the image. On a terminal, what would act on it is written out (\u001b).

   agentrun image show python:3.12-slim
   agentrun image show python:3.12-slim /etc
   agentrun image show python:3.12-slim /etc/passwd`,
		Flags:  []cli.Flag{&cli.StringFlag{Name: "max-size", Value: "1GiB", Usage: "at most so many `BYTES` of a file"}, jsonFlag()},
		Action: g.imageShow,
	}
}

func (g *global) imageShow(c *cli.Context) error {
	a := c.Args().Slice()
	if len(a) != 1 && len(a) != 2 {
		return usageError(c, errors.New("want NAME, and PATH to look into it"), false)
	}
	most, err := maxSize(c)
	if err != nil {
		return err
	}
	i, err := g.Images().Inspect(a[0])
	if err == nil {
		var used *os.File
		if used, err = g.Images().Use(i.ID); err == nil {
			defer used.Close()
		}
	}
	switch {
	case err != nil:
	case len(a) == 1:
		err = g.showImage(c, i)
	default:
		err = g.showInImage(c, i, a[1], most)
	}
	if err != nil {
		return knownImage("show", a[0], err)
	}
	return nil
}

// imageShown is what the verb answers about an image.
type imageShown struct {
	images.Info
	About images.About `json:"about"`
}

func (g *global) showImage(c *cli.Context, i images.Info) error {
	about, err := g.Images().About(i.Image)
	if errors.Is(err, fs.ErrNotExist) {
		return hinted.New(errors.New("an older agentrun has unpacked it, and kept only what a run gets of it"), "agentrun image inspect has that; rm and pull it again for the rest")
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(imageShown{i, about})
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	list := func(name string, values []string) {
		for _, v := range values {
			fmt.Fprintf(w, "%s\t%s\n", name, shown.Line(v))
			name = ""
		}
	}
	one := func(name, value string) {
		if value != "" {
			list(name, []string{value})
		}
	}
	list("name", i.Names)
	one("id", i.ID)
	one("manifest", i.Manifest)
	one("platform", i.Platform)
	one("source", i.Source)
	one("signed by", i.SignedBy)
	one("author", about.Author)
	list("variable", i.Config.Env)
	one("user", i.Config.User)
	one("folder", i.Config.Workdir)
	one("entrypoint", quoted(i.Config.Entrypoint))
	one("command", quoted(i.Config.Cmd))
	list("port", about.Ports)
	list("volume", about.Volumes)
	one("stop signal", about.Stop)
	one("content", fmt.Sprintf("%d files, %s", i.Content.Files, memText(i.Content.Bytes)))
	fmt.Fprintln(w)
	fmt.Fprintln(w, "LAYER\tSIZE\tCREATED BY")
	for _, s := range about.Steps {
		layer, size := "-", "-"
		if d, ok := strings.CutPrefix(s.Layer, "sha256:"); ok && len(d) >= 12 {
			layer, size = shown.Line(d[:12]), memText(s.Bytes)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", layer, size, shown.Line(s.By))
	}
	return w.Flush()
}

func (g *global) showInImage(c *cli.Context, i images.Info, at string, most int64) error {
	file, info, err := g.Images().Open(i.ID, at)
	if errors.Is(err, fs.ErrNotExist) {
		err = hinted.New(err, "agentrun image show "+i.ID[:len("sha256:")+12]+" "+path.Dir(path.Clean("/"+at))+" lists what there is")
	}
	if err != nil {
		return fmt.Errorf("%.200q: %w", at, err)
	}
	defer file.Close()
	if info.IsDir() {
		list, more, err := images.Entries(file)
		if err != nil {
			return err
		}
		if more {
			complain(fmt.Errorf("%.200q has more than the %d names that are listed", at, len(list)))
		}
		return printList(c, list, "MODE\tUID\tGID\tBYTES\tTIME\tNAME", list, func(e images.Entry) []any {
			name := e.Name
			if e.Link != "" {
				name += " -> " + e.Link
			}
			return []any{e.Type, e.UID, e.GID, e.Bytes, e.Time, name}
		})
	}
	if c.Bool("json") {
		return printJSON(images.EntryOf(info))
	}
	if info.Size() > most {
		return hinted.New(fmt.Errorf("%.200q has %d bytes", at, info.Size()), "--max-size says how many are written")
	}
	var to io.Writer = os.Stdout
	if isTerminal(os.Stdout) {
		w := &shown.Writer{To: to}
		defer w.Flush()
		to = w
	}
	_, err = io.Copy(to, file)
	return err
}
