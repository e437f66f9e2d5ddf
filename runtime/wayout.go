// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/hostcaps"
	"agentrun/netns"
	"agentrun/profiles"
	"agentrun/toolproxy/link"
)

// Ports and paths of the way out, the same in every sandbox.
const (
	toolsPort   = 7600
	proxyPort   = 7601
	dnsPort     = 53
	toolsSocket = "/run/agentrun/tools.sock"
	toolsFD     = 3 // the tool gateway's descriptor in profiles without sockets
)

// Wayout is the way out of a run (M-7): the gateway's program, and who answers it. The sockets are made in
// the run's network namespace at the launch; the program is started at the first connection, so a run that
// never looks for a way out pays a millisecond for it and no memory.
type Wayout struct {
	Program    string // the gateway, an absolute path
	Start      link.Start
	Supervisor link.Supervisor
	Announce   func([]link.Command) error
	// Env is all of the gateway's environment: the variables that its configuration takes secrets from.
	Env []string
	// Certificate of Start.CA, PEM, for the root view of a plan that has one.
	Certificate []byte
	// Eager starts the gateway with the run: for metrics that somebody scrapes.
	Eager bool
}

// PlanWayout is the way out as the agent sees it.
type PlanWayout struct {
	Tools    string   `json:"tools"`
	Proxy    string   `json:"proxy"`
	DNS      string   `json:"dns"`
	Capture  []uint16 `json:"capture_ports"`
	AllPorts bool     `json:"all_ports,omitempty"`  // every TCP and UDP port of every address but the sandbox's own is captured (H-11, ring 1)
	Socket   string   `json:"socket,omitempty"`     // unix socket, where the ring may make one
	FD       int      `json:"descriptor,omitempty"` // inherited, in profiles without sockets
	CA       bool     `json:"ca,omitempty"`         // the root view trusts a CA that is this run's only
	Dialects []string `json:"dialects,omitempty"`   // of models, beside OpenAI's chat
}

// planWayout lays the way out down. Loopback addresses are the namespace's own, so they can be the same in
// every run.
func (p *Plan) planWayout(s *Spec) {
	if !s.Wayout {
		return
	}
	e := &PlanWayout{
		Tools: fmt.Sprintf("127.0.0.1:%d", toolsPort), Proxy: fmt.Sprintf("127.0.0.1:%d", proxyPort), DNS: fmt.Sprintf("127.0.0.1:%d", dnsPort),
		Capture: []uint16{80, 443},
	}
	for _, port := range s.CapturePorts {
		if !slices.Contains(e.Capture, port) {
			e.Capture = append(e.Capture, port)
		}
	}
	if p.Ring < 3 {
		e.Socket = toolsSocket
	}
	if p.onlyTools() {
		e.FD = toolsFD
	}
	e.CA, e.Dialects = s.WayoutCA, s.Dialects
	e.AllPorts = p.Ring == 1 && s.Profile.Network.Mode == profiles.NetworkPublic && hostcaps.SocketLookup.Check() == nil
	p.Wayout = e
}

// WayoutPorts are the ports inside that the way out has for itself.
func WayoutPorts() []uint16 { return []uint16{dnsPort, toolsPort, proxyPort} }

// wayoutEntries show the unix socket and the CA in the root view.
func (l *launch) wayoutEntries() ([]fsjail.Entry, error) {
	if l.wayout == nil {
		return nil, nil
	}
	var list []fsjail.Entry
	if l.plan.Wayout.CA {
		bundle, err := l.bundle()
		if err != nil {
			return nil, fmt.Errorf("certificates of the root view: %w", err)
		}
		list = append(list, bundle...)
	}
	if l.plan.Wayout.Socket == "" {
		return list, nil
	}
	if err := l.wayout.listenUnix(l.dir); err != nil {
		return nil, fmt.Errorf("unix socket of the tool gateway: %w", err)
	}
	return append(list,
		fsjail.Entry{Kind: fsjail.Dir, Target: "/run", Mode: 0o755},
		fsjail.Entry{Kind: fsjail.Dir, Target: filepath.Dir(toolsSocket), Mode: 0o755},
		fsjail.Entry{Kind: fsjail.Bind, Target: toolsSocket, Source: filepath.Join(l.dir, "tools.sock"), IsFile: true, Why: "the tool gateway, for programs that take a path"},
	), nil
}

// Bundles of root certificates that programs have built in, on Debian-like and on Fedora-like hosts, there by the file that the first leads to.
var bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"}

// caFile holds the same for programs that are told by a variable. In a supplied root /etc is somebody's folder, in which nothing is made;
// /run is ours in each.
func (p *Plan) caFile() string {
	if slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool { return e.Target == "/etc" && e.Kind != fsjail.Dir }) {
		return "/run/agentrun/ca.crt"
	}
	return "/etc/agentrun-ca.crt"
}

// bundle is the host's root certificates and the run's own CA. No other sandbox and nobody on the host trusts
// that one.
func (l *launch) bundle() ([]fsjail.Entry, error) {
	var text []byte
	for _, name := range bundles {
		if b, err := os.ReadFile(name); err == nil {
			text = append(b, '\n')
			break
		}
	}
	file := filepath.Join(l.dir, "ca.crt")
	if err := os.WriteFile(file, append(text, l.wayout.Certificate...), 0o444); err != nil { //nolint:gosec // certificates are public
		return nil, err
	}
	var list []fsjail.Entry
	at := l.plan.caFile()
	if dir := filepath.Dir(at); dir != "/etc" {
		list = append(list, fsjail.Entry{Kind: fsjail.Dir, Target: dir, Mode: 0o755})
	}
	list = append(list, fsjail.Entry{Kind: fsjail.Bind, Target: at, Source: file, IsFile: true, Why: "root certificates, with the CA of this run's interception"})
	for _, name := range bundles {
		if l.plan.coverable(name) {
			list = append(list, fsjail.Entry{Kind: fsjail.Bind, Target: name, Source: file, IsFile: true, Why: "the same"})
		}
	}
	return list, nil
}

// coverable says whether a file may be mounted on: it is one, in a folder of /etc that the view shows, with no link on the way. What a kept
// root has in its place by now is the agent's and may be anything.
func (p *Plan) coverable(name string) bool {
	return slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		rel, within := strings.CutPrefix(name, e.Target+"/")
		if !within || e.Target != "/etc" && !strings.HasPrefix(e.Target, "/etc/") || e.Kind != fsjail.Bind && (e.Kind != fsjail.Overlay || p.RootDir != "") {
			return false
		}
		f := openPlain(filepath.Join(e.Source, rel), unix.O_PATH)
		if f != nil {
			f.Close()
		}
		return f != nil
	})
}

// openPlain opens a regular file with no link on the way; nil: there is none.
func openPlain(name string, flags uint64) *os.File {
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil
	}
	return f
}

// wayoutEnv tells unmodified programs where the way out is. Both cases of the names: curl reads only the
// small http_proxy, and others only the large ones.
func (p *Plan) wayoutEnv(env map[string]string) {
	if p.Wayout == nil {
		return
	}
	tools := "http://" + p.Wayout.Tools
	env["AGENTRUN_TOOLS_URL"] = tools + "/internal/tools"
	env["AGENTRUN_MCP_URL"] = tools + "/mcp"
	env["OPENAI_BASE_URL"] = tools + "/v1"
	env["OPENAI_API_KEY"] = "none" // clients refuse to start without one; the gateway has the real ones and ignores this
	// Only where a provider has them: a client that is led here to no model can't go by egress any more.
	if slices.Contains(p.Wayout.Dialects, "messages") {
		env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"] = tools, "none"
	}
	if slices.Contains(p.Wayout.Dialects, "gemini") {
		env["GOOGLE_GEMINI_BASE_URL"], env["GEMINI_API_KEY"] = tools, "none"
	}
	if p.Wayout.Socket != "" {
		env["AGENTRUN_TOOLS_SOCKET"] = p.Wayout.Socket
	}
	if p.Wayout.FD != 0 {
		env["AGENTRUN_TOOLS_FD"] = fmt.Sprint(p.Wayout.FD)
	}
	if p.Wayout.CA {
		// Each TLS library looks for its own.
		for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"} {
			env[name] = p.caFile()
		}
	}
	for name, value := range map[string]string{
		"http_proxy": "http://" + p.Wayout.Proxy, "https_proxy": "http://" + p.Wayout.Proxy,
		// No socks5h: clients in Python end at their start where they have no library for it, or don't know the scheme, also
		// those that only want the tools and models beside no_proxy.
		"all_proxy": "http://" + p.Wayout.Proxy, "no_proxy": "127.0.0.1,::1,localhost",
	} {
		env[name], env[strings.ToUpper(name)] = value, value
	}
}

// wanted are the sockets inside, in the order in which the gateway inherits them, with their names on the
// link.
func (e *PlanWayout) wanted() (sockets []netns.Socket, names []string) {
	add := func(name string, s netns.Socket) { sockets, names = append(sockets, s), append(names, name) }
	add(link.SocketTools, netns.Socket{Port: toolsPort})
	add(link.SocketProxy, netns.Socket{Port: proxyPort})
	add(link.SocketDNS, netns.Socket{Port: dnsPort})
	add(link.SocketDNSUDP, netns.Socket{Port: dnsPort, Datagram: true})
	for _, port := range e.Capture {
		add(link.SocketCapture, netns.Socket{Port: port})
	}
	return sockets, names
}

// wayout is the way out of a live run. It is closed until somebody connects, or at once with Eager; then
// begun, while a gateway is started and answered; and ended when the run is, after which none is started any
// more. begin and finish meet under mu: whichever comes first decides. The sockets are ours until the gateway
// has them or it is clear that there will be none; whoever connected then finds the connection refused, and
// doesn't wait.
type wayout struct {
	Wayout
	inside      []*os.File // made in the namespace, on a goroutine of their own; ours until the gateway has them
	insideNames []string
	sockets     []*os.File // the others, likewise
	names       []string

	ports io.Closer // captures all ports as long as it is open; nil: only the listed ones are

	agentFD *os.File  // the agent's end of a connected pair
	serving bool      // serve was started
	group   *runGroup // puts the gateway into a cgroup; nil: there is none
	end     chan struct{}
	mu      sync.Mutex
	begun   bool     // the gateway is or was started
	ended   bool     // none is any more
	well    bool     // how it ended; set before end is closed
	stop    *os.File // closing it ends the wait for a first connection
	stopped *os.File
	done    chan struct{} // closed when the gateway is gone, or never came
}

// newWayout makes what needs no namespace.
func newWayout(e *Wayout, plan *PlanWayout) (*wayout, error) {
	if plan == nil {
		return nil, nil
	}
	if e == nil {
		return nil, errors.New("the plan has a way out, and nobody answers it")
	}
	stopped, stop, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	x := &wayout{Wayout: *e, end: make(chan struct{}), stop: stop, stopped: stopped, done: make(chan struct{})}
	if plan.FD != 0 {
		err = x.pair()
	}
	return x, err
}

// drop undoes newWayout and what came after it, also when the launch failed while somebody waits for a first
// connection.
func (x *wayout) drop() {
	if x.serving {
		x.finish(false)
		x.stop.Close()
		<-x.done
	}
	x.closeSockets()
	if x.ports != nil {
		x.ports.Close()
	}
	x.stop.Close()
	x.stopped.Close()
}

// networkOf makes the run's network namespace with the sockets in it.
func networkOf(making func(...func(*netns.NS) error) (*netns.NS, error), x *wayout, plan *PlanWayout) (*netns.NS, error) {
	if x == nil {
		return making()
	}
	sockets, names := plan.wanted()
	x.insideNames = names
	return making((*netns.NS).Capture, func(ns *netns.NS) (err error) {
		x.inside, err = ns.Sockets(sockets)
		return err
	}, func(ns *netns.NS) error {
		if !plan.AllPorts {
			return nil
		}
		return x.captureAll(ns)
	})
}

// captureAll has every port lead to the way out.
func (x *wayout) captureAll(ns *netns.NS) error {
	relay, err := ns.RelaySockets()
	if err != nil {
		return err
	}
	x.ports, err = ns.AllPorts(x.inside[slices.Index(x.insideNames, link.SocketCapture)], relay[0], dnsPort)
	x.inside = append(x.inside, relay...)
	x.insideNames = append(x.insideNames, link.SocketUDP)
	for range relay[1:] {
		x.insideNames = append(x.insideNames, link.SocketAnswers)
	}
	return err
}

// listenUnix makes the socket that the root view shows as toolsSocket. What reaches it comes from this
// sandbox: no other sees the run folder.
func (x *wayout) listenUnix(dir string) error {
	// A socket's path has at most 107 bytes (unix(7)); by descriptor a run folder may lie as deep as it
	// likes.
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/tools.sock", fdOf(d)), Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false) // the run folder goes as a whole
	f, err := l.File()
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	x.sockets, x.names = append(x.sockets, f), append(x.names, link.SocketUnix)
	// Who may connect is decided by who sees it.
	return os.Chmod(filepath.Join(dir, "tools.sock"), 0o666) //nolint:gosec // within a folder of mode 0700
}

// pair makes the connected descriptors for an agent that may make no socket.
func (x *wayout) pair() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	x.sockets, x.names = append(x.sockets, os.NewFile(uintptr(fds[0]), "tools")), append(x.names, link.SocketFD)
	x.agentFD = os.NewFile(uintptr(fds[1]), "agent-tools")
	return nil
}

// all are the sockets in the order of their names; it is asked after the namespace is made.
func (x *wayout) all() []*os.File { return slices.Concat(x.inside, x.sockets) }

// closeSockets leaves the sockets to the gateway: when that is gone, connections are refused instead of
// waiting for ever.
func (x *wayout) closeSockets() {
	for _, f := range x.all() {
		f.Close()
	}
	x.inside, x.sockets = nil, nil
	if x.agentFD != nil {
		x.agentFD.Close()
		x.agentFD = nil
	}
}

// gatewayPatience is how long a gateway may take to put its last records when the run is over.
const gatewayPatience = 3 * time.Second

// serve waits for the first connection, has the run's start settled, starts the gateway and answers it until
// the run ends. lost hears why there is no gateway, or none any more: then nobody decides, and the run must
// not go on; it hears nothing if the run ended first.
func (x *wayout) serve(uid int, settled func() error, lease func() (Lease, <-chan struct{}), lost func(error)) {
	defer close(x.done)
	called, err := true, error(nil)
	if !x.Eager {
		called, err = x.called()
	}
	if err == nil {
		if !called || !x.begin() {
			return
		}
		err = settled()
	}
	if err == nil {
		// The gateway's parent-death signal is tied to this thread, which ends with it.
		goruntime.LockOSThread()
		err = x.gateway(uid, lease)
	}
	x.closeSockets()
	select {
	case <-x.end:
	default:
		lost(err)
	}
}

// called waits until somebody connects, or nobody will any more (false). Nothing is accepted or read here. The sockets are in an epoll of their
// own, which the runtime's is told of: so no thread waits in a run that calls nobody, as most do.
func (x *wayout) called() (called bool, err error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false, os.NewSyscallError("epoll_create1", err)
	}
	all := append(x.all(), x.stopped)
	for i, f := range all {
		if err == nil {
			err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(fdOf(f)), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)})) //nolint:gosec // a descriptor
		}
	}
	err = errors.Join(err, os.NewSyscallError("fcntl", unix.SetNonblock(fd, true)))
	calls := os.NewFile(uintptr(fd), "calls") //nolint:gosec // likewise
	defer calls.Close()
	raw, rerr := calls.SyscallConn()
	if err = errors.Join(err, rerr); err != nil {
		return false, err
	}
	rerr = raw.Read(func(fd uintptr) bool {
		events := make([]unix.EpollEvent, len(all))
		var n int
		if n, err = unix.EpollWait(int(fd), events, 0); errors.Is(err, unix.EINTR) { //nolint:gosec // likewise
			n, err = 0, nil
		}
		called = n > 0 && !slices.ContainsFunc(events[:n], func(e unix.EpollEvent) bool { return int(e.Fd) == len(all)-1 })
		return n > 0 || err != nil
	})
	return called, errors.Join(err, rerr)
}

// fdOf doesn't make the descriptor block, as Fd would.
func fdOf(f *os.File) (n uintptr) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = fd })
	}
	return n
}

func (x *wayout) gateway(uid int, lease func() (Lease, <-chan struct{})) error {
	conn, peer, err := link.Pair()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // Serve has closed it
	var complaint tail
	cmd := exec.Command(x.Program, "serve")
	cmd.Env = append(slices.Clone(x.Env), "GOMEMLIMIT=256MiB", "GOTRACEBACK=single")
	cmd.ExtraFiles = append([]*os.File{peer}, x.all()...)
	cmd.Stderr = &complaint
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	err = cmd.Start()
	peer.Close()
	if err != nil {
		return fmt.Errorf("start the gateway: %w", err)
	}
	announce := x.Announce
	if x.group != nil {
		// While it begins: on cgroup v1 the move waits for the kernel (docs/cgroups.md).
		if err := x.group.enter(cmd.Process.Pid); err != nil {
			_ = cmd.Process.Kill()
			return fmt.Errorf("start the gateway: %w", errors.Join(err, cmd.Wait()))
		}
		announce = func(commands []link.Command) error { // before it reads anything of the agent's
			if err := x.group.begin(); err != nil || x.Announce == nil {
				return err
			}
			return x.Announce(commands)
		}
	}
	names := slices.Concat(x.insideNames, x.names)
	x.closeSockets()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	late := make(chan struct{})
	go func() {
		select {
		case <-x.end:
			select {
			case <-late:
			case <-time.After(gatewayPatience):
				cancel(errors.New("the gateway did not end with the run"))
			}
		case <-late:
		}
	}()
	start := x.Start
	start.Sockets, start.UID = names, uid
	now, _ := lease()
	start.Ends = now.Ends
	server := link.Server{Start: start, Supervisor: x.Supervisor, Announce: announce, End: x.end, Well: func() bool { return x.well }}
	server.Ends = func() (time.Time, <-chan struct{}) {
		l, changed := lease()
		return l.Ends, changed
	}
	serr := server.Serve(ctx, conn)
	// A gateway whose link is gone has nobody to ask; it ends by itself, or now.
	kill := time.AfterFunc(gatewayPatience, func() { _ = cmd.Process.Kill() })
	werr := cmd.Wait()
	kill.Stop()
	close(late)
	if text := complaint.last(); text != "" {
		return fmt.Errorf("gateway: %s", text)
	}
	if serr != nil {
		return fmt.Errorf("gateway: %w", serr)
	}
	if werr != nil {
		return fmt.Errorf("gateway: %w", werr)
	}
	return errors.New("gateway: it ended")
}

// begin says whether a gateway may still be started: not once the run has ended.
func (x *wayout) begin() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begun = !x.ended
	return x.begun
}

// finish ends the gateway, if there is one, and waits for it. The agent is dead: what comes now are the last
// records.
func (x *wayout) finish(well bool) {
	x.mu.Lock()
	if !x.ended {
		x.ended, x.well = true, well
		close(x.end)
	}
	begun := x.begun
	x.mu.Unlock()
	if begun {
		<-x.done
	}
}

// tail keeps the end of what a program says before it dies.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > tailSize {
		t.b = append(t.b[:0], t.b[len(t.b)-tailSize:]...)
	}
	return len(b), nil
}

// last is its last line: what an error says, or the head of a panic. A gateway that was taken over may say
// anything, and operators read it in terminals: what doesn't print is left out.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.b)
	if i := bytes.Index(text, []byte("panic: ")); i >= 0 {
		text, _, _ = bytes.Cut(text[i:], []byte("\n"))
	} else if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(text[:min(len(text), maxComplaint)]), ""))
}

const maxComplaint = 512
