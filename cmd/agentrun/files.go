// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/fsjail"
	"agentrun/internal/beneath"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/profiles"
	"agentrun/supervisor"
)

// filesCommands are the verbs about files of live runs. Paths are the sandbox's: nothing of the agent's is looked up on the host, and what comes
// out is unpacked where it can't lead out of.
func (l *liveVerbs) filesCommands() []*cli.Command {
	return []*cli.Command{l.cp(), l.cat(), l.ls(), l.stat(), l.watchFiles()}
}

func (l *liveVerbs) cp() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "cp",
		Usage:     "copy files out of a live run, or into it",
		ArgsUsage: "REF:PATH DEST | SOURCE REF:PATH",
		Description: `With the rights that the agent has now, and of what it sees; also of a frozen run. PATH without a slash at its begin is below the
folder the agent was started in. A folder that is there is copied into, anything else names the copy; - is a tar on stdout or stdin.

   agentrun cp planner:/workspace/report.pdf .
   agentrun cp ./fix.patch planner:
   agentrun cp planner:src - | tar tv

Out of the sandbox come no owners, set-ID bits or devices, and no link that leads out of what is copied. On record as file_copy.

Exit code: 0; 1 refused, not there, or too much; 2 usage.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "max-size", Value: "1GiB", Usage: "at most so many `BYTES` of content"},
			&cli.BoolFlag{Name: "json", Usage: "print what was copied as JSON"},
		},
		Action: l.copyAction,
	})
}

// place is where a copy comes from or goes to.
type place struct {
	ref  string // of a run; empty: path is the host's
	path string
}

// placeOf tells REF:PATH from a path of the host, which is one with a slash before its first colon.
func placeOf(arg string) place {
	ref, at, ok := strings.Cut(arg, ":")
	if !ok || ref == "" || strings.Contains(ref, "/") {
		return place{path: arg}
	}
	if at == "" {
		at = "."
	}
	return place{ref, at}
}

func (l *liveVerbs) copyAction(c *cli.Context) error {
	if c.NArg() != 2 {
		return usagef("agentrun cp REF:PATH DEST, or agentrun cp SOURCE REF:PATH", "cp takes two arguments")
	}
	if slices.Contains(c.Args().Slice(), "") { // which would be the folder that we are in, and all that is in it
		return usagef("the current folder is written .", "one of the two is empty")
	}
	from, to := placeOf(c.Args().Get(0)), placeOf(c.Args().Get(1))
	if (from.ref == "") == (to.ref == "") {
		return usagef("a path of the host with a colon is written ./a:b", "exactly one of the two must be REF:PATH")
	}
	most, err := maxSize(c)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	r, err := l.ofPlace(ctx, from.ref+to.ref)
	if err != nil {
		return err
	}
	t := transfer{run: r, request: control.FilesRequest{MaxBytes: most}, shown: l.written(ctx)}
	if from.ref != "" {
		err = t.out(ctx, from.path, to.path)
	} else {
		err = t.in(ctx, from.path, to.path)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		return refusal("copy files of "+r.label(), err)
	}
	return t.tell(c.Bool("json"), c.Args().Get(1) == "-")
}

func maxSize(c *cli.Context) (int64, error) {
	n, err := profiles.ParseSize(c.String("max-size"))
	if err != nil || n <= 0 {
		return 0, usagef("such as 500MiB", "--max-size %q is no size", c.String("max-size"))
	}
	return int64(n), nil
}

func (l *liveVerbs) ofPlace(ctx context.Context, ref string) (liveRun, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return l.findOne(ctx, ref)
}

// written are the host's folders that live runs may write: a link in one is no choice of the operator's. Where a supervisor doesn't answer they
// may be anywhere.
func (l *liveVerbs) written(ctx context.Context) (all []string) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	runs, err := l.runs().All(ctx)
	if err != nil {
		complain(fmt.Errorf("what live runs may write isn't known, and no link is followed: %w", err))
		return []string{"/"}
	}
	for _, r := range runs {
		all = append(all, r.Writes...)
	}
	return all
}

// onHost is a path of the host from the root on, as the kernel has the folder that we are in. Its "..", which links may come before, stay.
func onHost(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	here, err := supervisor.OwnCaller().Getwd()
	return here + "/" + name, err
}

// transfer is one copy.
type transfer struct {
	run     liveRun
	request control.FilesRequest
	done    control.Copied
	links   int      // that led out, and were left out
	shown   []string // folders in which no link is followed
}

// tell says what was copied; to people only what they wouldn't expect.
func (t *transfer) tell(asJSON, piped bool) error {
	if t.links > 0 {
		complain(fmt.Errorf("%d links that lead out of what was copied were left out", t.links))
	}
	if t.done.Left > 0 {
		complain(fmt.Errorf("%d pipes, sockets, devices or other file systems were left out", t.done.Left))
	}
	if t.done.Changed > 0 {
		complain(fmt.Errorf("%d files grew shorter while they were read, and end in zeros", t.done.Changed))
	}
	if asJSON && !piped {
		return printJSON(t.done)
	}
	return nil
}

// out copies from the sandbox. What comes is unpacked into a folder of its own, and takes its place when all of it is there.
func (t *transfer) out(ctx context.Context, from, dest string) (err error) {
	t.request.Path = from
	if dest == "-" {
		if isTerminal(os.Stdout) {
			return hinted.New(errors.New("a tar is nothing for a terminal"), "agentrun cp REF:PATH - | tar tv, or agentrun cat")
		}
		t.done, err = control.CopyOut(ctx, t.run.by, t.run.ID, t.request, os.Stdout)
		return err
	}
	if dest, err = onHost(dest); err != nil {
		return err
	}
	folder, name := dest, ""
	place, err := fsjail.OpenFolder(dest, t.shown)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		folder, name = filepath.Split(strings.TrimRight(dest, "/"))
		place, err = fsjail.OpenFolder(folder, t.shown)
	}
	if err != nil {
		return err
	}
	defer place.Close()
	// The folder may be another user's, who can give any name in it away: from here on it is descriptors that are gone by.
	temp := ".agentrun-cp-" + rand.Text()
	if err := unix.Mkdirat(int(place.Fd()), temp, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: filepath.Join(folder, temp), Err: err}
	}
	defer func() {
		if rerr := unix.Unlinkat(int(place.Fd()), temp, unix.AT_REMOVEDIR); rerr != nil { // it isn't there, or it isn't ours any more
			err = errors.Join(err, &os.PathError{Op: "rmdir", Path: filepath.Join(folder, temp), Err: rerr})
		}
	}()
	own, err := beneath.Fresh(int(place.Fd()), temp, 0o700)
	if err != nil {
		return err
	}
	defer own.Close()
	into, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", own.Fd()))
	if err != nil {
		return err
	}
	defer into.Close()
	unpackErr := t.unpack(ctx, into)
	list, err := own.ReadDir(-1)
	defer func() {
		for _, e := range list {
			err = errors.Join(err, into.RemoveAll(e.Name()))
		}
	}()
	if err = errors.Join(unpackErr, err); err != nil {
		return err
	}
	if len(list) != 1 {
		return errors.New("it is neither a file nor a folder, or a link that leads elsewhere")
	}
	if name == "" {
		name = list[0].Name()
	}
	// A file may take the place of another; of folders nothing is thrown away.
	var st unix.Stat_t
	err = unix.Fstatat(int(place.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (list[0].IsDir() || st.Mode&unix.S_IFMT == unix.S_IFDIR) {
		return hinted.New(fmt.Errorf("%q is there already", filepath.Join(folder, name)), "name another place, or remove it before")
	}
	if err := unix.Renameat(int(own.Fd()), list[0].Name(), int(place.Fd()), name); err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(folder, temp, list[0].Name()), New: filepath.Join(folder, name), Err: err}
	}
	return nil
}

func (t *transfer) unpack(ctx context.Context, into *os.Root) (err error) {
	tarOut, tarIn := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		done, err := fsjail.Unpack(into, tarOut, fsjail.FilesLimits{Bytes: t.request.MaxBytes, Entries: 1 << 20}, staysWithin)
		t.links = done.Left
		if err == nil {
			_, err = io.Copy(io.Discard, tarOut) // what pads a tar
		}
		tarOut.CloseWithError(err)
		unpacked <- err
	}()
	t.done, err = control.CopyOut(ctx, t.run.by, t.run.ID, t.request, tarIn)
	tarIn.CloseWithError(err)
	if why := <-unpacked; err == nil {
		err = why
	}
	return err
}

// staysWithin says whether a link of a tar leads to something that the tar's first folder has, by its words.
func staysWithin(name, link string) bool {
	top, _, below := strings.Cut(name, "/")
	to := path.Join(path.Dir(name), link)
	return below && !path.IsAbs(link) && !beneath.Climbs(link) && (to == top || strings.HasPrefix(to, top+"/"))
}

// in copies into the sandbox.
func (t *transfer) in(ctx context.Context, from, dest string) (err error) {
	if from == "-" {
		t.request.Path = dest
		t.done, err = control.CopyIn(ctx, t.run.by, t.run.ID, t.request, os.Stdin)
		return err
	}
	source, err := onHost(from)
	if err != nil {
		return err
	}
	folder, base := filepath.Split(strings.TrimRight(source, "/"))
	if base == "." || base == ".." || base == "" { // its name is where it leads to
		folder, base = filepath.Split(filepath.Clean(source))
	}
	above, err := fsjail.OpenFolder(folder, t.shown)
	if err != nil {
		return err
	}
	defer above.Close()
	dir, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", above.Fd()))
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Lstat(base)
	if err != nil {
		return err
	}
	name := base
	there, err := fileAt(ctx, t.run, control.FilesRequest{Path: dest})
	switch e, _ := errors.AsType[*control.Error](err); {
	case err == nil && there.Kind == "folder":
		t.request.Path = dest
	case err == nil && info.IsDir():
		return fmt.Errorf("%q is a folder, and %q in the sandbox is none", from, dest)
	case err == nil, e != nil && e.Code == control.CodeNotFound:
		t.request.Path, name = path.Dir(dest), path.Base(dest)
	default:
		return err
	}
	tarOut, tarIn := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		c, err := fsjail.Pack(dir, base, name, tarIn, fsjail.FilesLimits{Bytes: t.request.MaxBytes, Entries: 1 << 20}, nil)
		tarIn.CloseWithError(err)
		if err == nil && c.Left > 0 {
			complain(fmt.Errorf("%d pipes, sockets, devices or other file systems were left out", c.Left))
		}
		packed <- err
	}()
	t.done, err = control.CopyIn(ctx, t.run.by, t.run.ID, t.request, tarOut)
	tarOut.CloseWithError(io.ErrClosedPipe) // the packer ends where the other side has
	if why := <-packed; why != nil && !errors.Is(why, io.ErrClosedPipe) {
		err = why
	}
	return err
}

func (l *liveVerbs) cat() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "cat",
		Usage:     "write a file of a live run to stdout",
		ArgsUsage: "REF:PATH",
		Description: `On a terminal, what would act on it is written out (\u001b); anything that is no terminal gets the bytes as they are. On record as
file_copy.

   agentrun cat planner:notes.md

Exit code: 0; 1 refused, or no plain file; 2 usage.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "max-size", Value: "1GiB", Usage: "at most so many `BYTES`"}},
		Action: func(c *cli.Context) error {
			r, request, err := l.fileOf(c)
			if err != nil {
				return err
			}
			if request.MaxBytes, err = maxSize(c); err != nil {
				return err
			}
			var to io.Writer = os.Stdout
			if isTerminal(os.Stdout) {
				w := &shown.Writer{To: to}
				defer w.Flush()
				to = w
			}
			return refusal("read a file of "+r.label(), writeFile(c.Context, r, request, to))
		},
	})
}

// writeFile writes the content of a plain file.
func writeFile(ctx context.Context, r liveRun, request control.FilesRequest, to io.Writer) error {
	at, err := fileAt(ctx, r, request)
	if err != nil {
		return err
	}
	if at.Kind != "file" {
		return hinted.New(fmt.Errorf("it is a %s", strings.Replace(at.Kind, "other", "pipe, socket or device", 1)), "agentrun cp copies folders and links")
	}
	tarOut, tarIn := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := fsjail.FirstFile(tarOut, to)
		if err == nil {
			_, err = io.Copy(io.Discard, tarOut)
		}
		tarOut.CloseWithError(err)
		written <- err
	}()
	_, err = control.CopyOut(ctx, r.by, r.ID, request, tarIn)
	tarIn.CloseWithError(err)
	return errors.Join(err, <-written)
}

// fileAt is what a path names.
func fileAt(ctx context.Context, r liveRun, request control.FilesRequest) (control.FileInfo, error) {
	request.Self = true
	list, err := r.by.Files(ctx, r.ID, request)
	if err == nil && len(list) != 1 {
		err = errors.New("the supervisor doesn't say what it is")
	}
	if err != nil {
		return control.FileInfo{}, err
	}
	return list[0], nil
}

// fileOf is the run and the path of the one argument.
func (l *liveVerbs) fileOf(c *cli.Context) (liveRun, control.FilesRequest, error) {
	if c.NArg() != 1 {
		return liveRun{}, control.FilesRequest{}, usagef("such as planner:/workspace", "%s takes one REF:PATH", c.Command.Name)
	}
	at := placeOf(c.Args().First())
	if at.ref == "" {
		return liveRun{}, control.FilesRequest{}, usagef("such as planner:/workspace", "%q is no REF:PATH", c.Args().First())
	}
	r, err := l.ofPlace(c.Context, at.ref)
	return r, control.FilesRequest{Path: at.path}, err
}

func (l *liveVerbs) ls() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "ls",
		Usage:     "list a folder of a live run",
		ArgsUsage: "REF:PATH",
		Description: `As the agent sees it, and with its rights. Names are quoted where they could be taken for something else.

   agentrun ls planner:
   agentrun ls planner:/tmp/sandbox --json

Exit code: 0; 1 refused, or not there; 2 usage.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print the list as JSON"}},
		Action: func(c *cli.Context) error { return l.listFiles(c, false) },
	})
}

func (l *liveVerbs) stat() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "stat",
		Usage:     "say what a path of a live run is",
		ArgsUsage: "REF:PATH",
		Description: `A folder or a link itself, as the agent sees it.

   agentrun stat planner:/workspace/report.pdf --json

Exit code: 0; 1 refused, or not there; 2 usage.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print it as JSON"}},
		Action: func(c *cli.Context) error { return l.listFiles(c, true) },
	})
}

func (l *liveVerbs) watchFiles() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "watch",
		Usage:     "print what changes below a folder of a live run",
		ArgsUsage: "REF:PATH",
		Description: `Until the run or the folder ends, whoever made the change; on the folder's file system, in what the agent may read. Changes of one name
within a tenth of a second are told once, and what is more than 100 in it only counted (lost).

   agentrun watch planner:/workspace
   agentrun watch planner: --json

Exit code: 0; 1 refused, not there, or more than 2048 folders; 2 usage.`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print each as a line of JSON"}},
		Action: func(c *cli.Context) error {
			r, request, err := l.fileOf(c)
			if err != nil {
				return err
			}
			to := printChange
			if c.Bool("json") {
				to = func(f control.FileChange) error { return printLine(f) }
			}
			return refusal("watch files of "+r.label(), r.by.Watch(c.Context, r.ID, request, to))
		},
	})
}

func printChange(f control.FileChange) error {
	what := f.Path
	switch {
	case f.Lost > 0:
		what = fmt.Sprintf("at least %d changes", f.Lost)
	case f.Folder:
		what = strings.TrimSuffix(what, "/") + "/"
	}
	_, err := fmt.Println(oneLine(fmt.Sprintf("%s  %-10s  %s", f.Time.Local().Format("15:04:05.000"), f.Kind, what)))
	return err
}

func (l *liveVerbs) listFiles(c *cli.Context, self bool) error {
	r, request, err := l.fileOf(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	var list []control.FileInfo
	if self {
		list = make([]control.FileInfo, 1)
		list[0], err = fileAt(ctx, r, request)
	} else {
		list, err = r.by.Files(ctx, r.ID, request)
	}
	if err != nil {
		return refusal("list files of "+r.label(), err)
	}
	if c.Bool("json") {
		if self {
			return printJSON(list[0])
		}
		return printJSON(list)
	}
	t := shown.Table{Columns: []shown.Column{{Head: "KIND"}, {Head: "MODE"}, {Head: "SIZE", Right: true}, {Head: "CHANGED"}, {Head: "NAME"}}}
	for _, e := range list {
		name := e.Name
		if e.Link != "" {
			name += " -> " + e.Link
		}
		t.Row(e.Kind, fs.FileMode(e.Mode).String()[1:], fmt.Sprint(e.Size), e.Time.Local().Format("2006-01-02 15:04:05"), name) //nolint:gosec // permissions
	}
	_, err = fmt.Print(t.String())
	return err
}
