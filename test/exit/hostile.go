// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// hold is how long a connection is kept by those that never answer, unless the other side goes first.
const hold = 2 * time.Minute

// Hostile is an upstream out to harm whoever relays it (THREATS "tool proxy"). The first segment of the path says how:
//
//	/hang        takes the request and never answers
//	/headers     response headers without end
//	/long-header one header of many MiB
//	/short       Content-Length 1000, then ten bytes and the end
//	/long        Content-Length 5, then more: another response, for whoever takes the rest for one
//	/endless     a body without end, no length
//	/slow        a byte a second
//	/twice       two different lengths
//	/status      nonsense for a status line
//	/echo-key    status 500, and in the body every header that came, credentials among them
//	/redirect    to a metadata service
//	/upgrade     101 to a protocol that nobody asked for
//
// It speaks HTTP/1.1 without TLS, at ports 80 and 443 alike; serve it with World.Raw.
func Hostile(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(hold))
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, r.ContentLength))
	way, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	misbehave(c, way, r)
}

func misbehave(c net.Conn, way string, r *http.Request) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	say := func(format string, args ...any) bool {
		_, err := fmt.Fprintf(c, format, args...)
		return err == nil
	}
	switch way {
	case "hang":
		_, _ = c.Read(make([]byte, 1)) // until it is given up
	case "headers":
		for i := 0; say("%sX-%d: %s\r\n", map[bool]string{true: ok}[i == 0], i, strings.Repeat("x", 1000)); i++ {
		}
	case "long-header":
		say(ok + "X: ")
		for range 64 << 10 {
			if !say("%s", strings.Repeat("x", 1024)) {
				return
			}
		}
	case "short":
		say(ok + "Content-Length: 1000\r\n\r\n{\"a\":\"b\"}")
	case "long":
		say(ok + "Content-Length: 5\r\n\r\n\"abc\"" + ok + "Content-Length: 8\r\n\r\n\"stolen\"")
	case "endless":
		say(ok + "\r\n\"")
		for say("%s", strings.Repeat("a", 64<<10)) {
		}
	case "slow":
		say(ok + "Content-Length: 100000\r\n\r\n")
		for say("a") {
			time.Sleep(time.Second)
		}
	case "twice":
		say(ok + "Content-Length: 2\r\nContent-Length: 7\r\n\r\n\"a\"\"b\"\"")
	case "status":
		say("HTTP/9.9 -1 \x00\r\n\r\n")
	case "echo-key":
		var all strings.Builder
		_ = r.Header.Write(&all)
		say("HTTP/1.1 500 Broken\r\nContent-Type: text/plain\r\nX-Echo: %s\r\nContent-Length: %d\r\n\r\n%s", r.Header.Get("Authorization"), all.Len(), all.String())
	case "redirect":
		say("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/meta-data/\r\nContent-Length: 0\r\n\r\n")
	case "upgrade":
		say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: tunnel\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	default:
		say(ok + "Content-Length: 2\r\n\r\n{}")
	}
}

// HostileWays are the first segments that Hostile knows.
var HostileWays = []string{"hang", "headers", "long-header", "short", "long", "endless", "slow", "twice", "status", "echo-key", "redirect", "upgrade"}
