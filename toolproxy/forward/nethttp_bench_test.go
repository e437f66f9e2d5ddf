// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/rings"
)

// serveEnv makes the test's own program the proxy that is measured: its value is the contender.
const serveEnv = "AGENTRUN_FORWARD_SERVES"

func TestMain(m *testing.M) {
	if how := os.Getenv(serveEnv); how != "" {
		if err := serveMeasured(how, os.Getenv(serveEnv+"_TO")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// contenders are the proxy as it is, and the one of onNetHTTP.
var contenders = [2]string{"ours", "net/http"}

// usage is what a contender says of itself.
type usage struct {
	CPU      int64  // ns, user and system
	Mallocs  uint64 // since its start
	Resident int64  // KiB; only when asked for "rest", after a collection
}

// serveMeasured is a process with a proxy in it and a supervisor that agrees to everything. Each line of
// its input is a question for its usage; it ends with its input.
func serveMeasured(how, places string) error {
	allow := strings.Split(places, ",")
	p, err := New(Options{Supervisor: quietly{newSupervisor(rings.Standard)},
		Own:    func() ([]netip.Addr, error) { return nil, nil },
		Config: Config{Allow: allow, Private: allow, Limits: Limits{Connections: 4096}}})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serve, _ := entrance(p, how == contenders[1])
	if how == contenders[1] { // HTTP has the server's own, and SOCKS needs no more
		p.readers.New = func() any { return bufio.NewReaderSize(nil, 512) }
	}
	go func() { _ = serve(l) }() // ends with the process
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		u, err := ownUsage(in.Text() == "rest")
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
			return err
		}
	}
	return nil
}

func ownUsage(rest bool) (u usage, err error) {
	if rest {
		for range 2 { // what pools hold goes with the second collection
			debug.FreeOSMemory()
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return u, err
		}
		_, after, _ := strings.Cut(string(status), "VmRSS:")
		if u.Resident, err = strconv.ParseInt(strings.Fields(after)[0], 10, 64); err != nil {
			return u, err
		}
	}
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return u, err
	}
	u.Mallocs, u.CPU = m.Mallocs, r.Utime.Nano()+r.Stime.Nano()
	return u, nil
}

// measured is a contender's process, seen from outside.
type measured struct {
	at  string
	in  io.Writer
	out *bufio.Reader
}

func startMeasured(b *testing.B, how string, places ...string) *measured {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"="+how, serveEnv+"_TO="+strings.Join(places, ","))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	})
	m := &measured{in: in, out: bufio.NewReader(out)}
	line, err := m.out.ReadString('\n')
	if err != nil {
		b.Fatalf("%s says no address: %v", how, err)
	}
	m.at = strings.TrimSpace(line)
	return m
}

func (m *measured) usage(b *testing.B, question string) (u usage) {
	b.Helper()
	if _, err := io.WriteString(m.in, question+"\n"); err != nil {
		b.Fatal(err)
	}
	line, err := m.out.ReadBytes('\n')
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(line, &u); err != nil {
		b.Fatal(err)
	}
	return u
}

const (
	smallBody = 512     // bytes; an API's small reply
	bigBody   = 1 << 20 // bytes
)

// readLoadHead reads the head of a request or response: its first line and its Content-Length. By hand, so
// that what both ends cost stays small beside what is measured.
func readLoadHead(br *bufio.Reader) (first string, length int64, err error) {
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return "", 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return first, length, nil
		}
		if first == "" {
			first = string(line)
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err != nil {
				return "", 0, err
			}
		}
	}
}

// origin answers requests, those for /big with a body of 1 MiB. stream echoes a byte, or pours after a "p".
func origin(b *testing.B) (web, stream string) {
	b.Helper()
	serve := func(each func(net.Conn)) string {
		l := listen(b)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					each(c)
				}()
			}
		}()
		return l.Addr().String()
	}
	reply := func(n int) []byte {
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", n)
		return append([]byte(head), make([]byte, n)...)
	}
	small, big := reply(smallBody), reply(bigBody)
	web = serve(func(c net.Conn) {
		br := bufio.NewReaderSize(c, 64<<10)
		for {
			first, length, err := readLoadHead(br)
			if err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, br, length); err != nil {
				return
			}
			answer := small
			if strings.Contains(first, "/big") {
				answer = big
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
	stream = serve(func(c net.Conn) {
		one := make([]byte, 1)
		block := make([]byte, 256<<10)
		for _, err := c.Read(one); err == nil; {
			if one[0] == 'p' {
				_, err = c.Write(block)
			} else if _, err = c.Write(one); err == nil {
				_, err = c.Read(one)
			}
		}
	})
	return web, stream
}

// client is a connection to a proxy.
type client struct {
	net.Conn
	br *bufio.Reader
}

func dialMeasured(at string) (*client, error) {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &client{c, bufio.NewReaderSize(c, 64<<10)}, nil
}

// ask sends a request and takes all of its answer.
func (c *client) ask(request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	first, length, err := readLoadHead(c.br)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(first, "HTTP/1.1 200 ") {
		return fmt.Errorf("answer %q", first)
	}
	_, err = io.CopyN(io.Discard, c.br, length)
	return err
}

// load is one kind of work. run does it until a time, and returns how long each piece took (nil: pieces
// don't count) and how many units that makes.
type load struct {
	name, unit string
	run        func(at string, until time.Time) (took []time.Duration, units float64, err error)
}

// repeat does something until a time.
func repeat(until time.Time, do func() error) (took []time.Duration, err error) {
	for began := time.Now(); began.Before(until); {
		if err := do(); err != nil {
			return took, err
		}
		now := time.Now()
		took = append(took, now.Sub(began))
		began = now
	}
	return took, nil
}

func loads(web, stream string) []load {
	get := func(path string) []byte {
		const form = "GET http://%s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
		return fmt.Appendf(nil, form, web, path, web)
	}
	post := fmt.Appendf(nil, "POST http://%s/ HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n",
		web, web, bigBody)
	post = append(post, make([]byte, bigBody)...)
	connect := fmt.Appendf(nil, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", stream, stream)
	kept := func(request []byte) func(string, time.Time) ([]time.Duration, float64, error) {
		return func(at string, until time.Time) ([]time.Duration, float64, error) {
			c, err := dialMeasured(at)
			if err != nil {
				return nil, 0, err
			}
			defer c.Close()
			took, err := repeat(until, func() error { return c.ask(request) })
			return took, float64(len(took)), err
		}
	}
	crowd := func(at string, until time.Time) ([]time.Duration, float64, error) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var all []time.Duration
		var errs []error
		for range 64 {
			wg.Go(func() {
				took, _, err := kept(get("/"))(at, until)
				mu.Lock()
				defer mu.Unlock()
				all, errs = append(all, took...), append(errs, err)
			})
		}
		wg.Wait()
		return all, float64(len(all)), errors.Join(errs...)
	}
	anew := func(do func(*client) error) func(string, time.Time) ([]time.Duration, float64, error) {
		return func(at string, until time.Time) ([]time.Duration, float64, error) {
			took, err := repeat(until, func() error {
				c, err := dialMeasured(at)
				if err != nil {
					return err
				}
				defer c.Close()
				return do(c)
			})
			return took, float64(len(took)), err
		}
	}
	tunnel := func(c *client) error { return c.ask(connect) }
	pull := func(at string, until time.Time) (_ []time.Duration, units float64, err error) {
		c, err := dialMeasured(at)
		if err != nil {
			return nil, 0, err
		}
		defer c.Close()
		if err := tunnel(c); err != nil {
			return nil, 0, err
		}
		if _, err := io.WriteString(c, "p"); err != nil {
			return nil, 0, err
		}
		block := make([]byte, 256<<10)
		for n := 0; err == nil && time.Now().Before(until); units += float64(n) / bigBody {
			n, err = c.Read(block)
		}
		return nil, units, err
	}
	return []load{
		{"GET of 512 bytes, kept connection", "request", kept(get("/"))},
		{"GET of 512 bytes, 64 kept connections", "request", crowd},
		{"GET of 512 bytes, a connection each", "request", anew(func(c *client) error { return c.ask(get("/")) })},
		{"GET of 1 MiB, kept connection", "MiB", kept(get("/big"))},
		{"POST of 1 MiB, kept connection", "MiB", kept(post)},
		{"CONNECT, a byte there and back, closed", "tunnel", anew(func(c *client) error {
			if err := tunnel(c); err != nil {
				return err
			}
			if _, err := io.WriteString(c, "e"); err != nil {
				return err
			}
			_, err := c.br.ReadByte()
			return err
		})},
		{"CONNECT, one tunnel that pours", "MiB", pull},
	}
}

// row is one figure of both contenders, a value for each round.
type row struct {
	what   string
	values [2][]float64
}

type table struct{ rows []*row }

func (t *table) add(what string, contender int, v float64) {
	at := slices.IndexFunc(t.rows, func(r *row) bool { return r.what == what })
	if at < 0 {
		at = len(t.rows)
		t.rows = append(t.rows, &row{what: what})
	}
	t.rows[at].values[contender] = append(t.rows[at].values[contender], v)
}

// String sets each figure of one against the other's of the same round: what slows the machine for a while
// falls on both.
func (t *table) String() string {
	var b strings.Builder
	b.WriteString("| what | n | ours | p10–p90 | net/http | p10–p90 | net/http to ours, by rounds | p10–p90 |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, r := range t.rows {
		n := min(len(r.values[0]), len(r.values[1]))
		fmt.Fprintf(&b, "| %s | %d |", r.what, n)
		ratios := make([]float64, n)
		for i := range n {
			ratios[i] = r.values[1][i] / r.values[0][i]
		}
		for _, of := range [][]float64{r.values[0], r.values[1]} {
			low, middle, high := quantile(of, 0.1), quantile(of, 0.5), quantile(of, 0.9)
			fmt.Fprintf(&b, " %s | %s–%s |", digits(middle), digits(low), digits(high))
		}
		low, middle, high := quantile(ratios, 0.1), quantile(ratios, 0.5), quantile(ratios, 0.9)
		fmt.Fprintf(&b, " %.2f× | %.2f–%.2f |\n", middle, low, high)
	}
	return b.String()
}

// digits gives three that count.
func digits(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func quantile(of []float64, q float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// BenchmarkAgainstNetHTTP sets the proxy against the same on net/http. Each iteration is a round: every
// load on one and on the other, in turn first, and the memory of two fresh processes. The table goes to
// standard output.
//
//	go test ./toolproxy/forward -run '^$' -bench AgainstNetHTTP -benchtime 20x
func BenchmarkAgainstNetHTTP(b *testing.B) {
	const spell = 200 * time.Millisecond
	web, stream := origin(b)
	var both [2]*measured
	for i, how := range contenders {
		both[i] = startMeasured(b, how, web, stream)
	}
	rows := &table{}
	one := func(l load, i int, record bool) {
		before := both[i].usage(b, "")
		began := time.Now()
		took, units, err := l.run(both[i].at, began.Add(spell))
		for err == nil && units == 0 { // on a busy machine a spell may pass before it is our turn
			began = time.Now()
			took, units, err = l.run(both[i].at, began.Add(spell))
		}
		elapsed := time.Since(began).Seconds()
		after := both[i].usage(b, "")
		if err != nil {
			b.Fatalf("%s, %s: %v", contenders[i], l.name, err)
		}
		if !record {
			return
		}
		if len(took) > 0 {
			micros := make([]float64, len(took))
			for j, d := range took {
				micros[j] = float64(d.Nanoseconds()) / 1e3
			}
			rows.add(l.name+": p50, µs", i, quantile(micros, 0.5))
			rows.add(l.name+": p99, µs", i, quantile(micros, 0.99))
		}
		rows.add(l.name+": "+l.unit+"s/s", i, units/elapsed)
		rows.add(l.name+": CPU of the proxy, µs/"+l.unit, i, float64(after.CPU-before.CPU)/1e3/units)
		rows.add(l.name+": allocations/"+l.unit, i, float64(after.Mallocs-before.Mallocs)/units)
	}
	for _, l := range loads(web, stream) { // warm
		one(l, 0, false)
		one(l, 1, false)
	}
	for round := 0; b.Loop(); round++ {
		for _, l := range loads(web, stream) {
			one(l, round%2, true)
			one(l, 1-round%2, true)
		}
		for _, i := range []int{round % 2, 1 - round%2} {
			rows.add("resident after these loads, KiB", i, float64(both[i].usage(b, "rest").Resident))
			idle(b, rows, i, web)
		}
	}
	fmt.Fprint(os.Stdout, "\n", rows)
}

// idle weighs a fresh process with connections that have made a request each and wait.
func idle(b *testing.B, rows *table, i int, web string) {
	b.Helper()
	m := startMeasured(b, contenders[i], web)
	request := fmt.Appendf(nil, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", web, web)
	var open []*client
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for _, n := range []int{1, 100, 1000} {
		for len(open) < n {
			c, err := dialMeasured(m.at)
			if err != nil {
				b.Fatal(err)
			}
			c.br = bufio.NewReaderSize(c, 1024)
			open = append(open, c)
			if err := c.ask(request); err != nil {
				b.Fatal(err)
			}
		}
		rows.add(fmt.Sprintf("resident with %d idle connections, KiB", n), i, float64(m.usage(b, "rest").Resident))
	}
}
