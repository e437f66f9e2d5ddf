// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A proxy that hangs up after each answer must be measured with what that costs its clients, not fail.
func TestClientsComeBack(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go each(l, func(c net.Conn) {
		if _, err := readHead(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		}
	})
	got, err := ask(t.Context(), l.Addr().String(), []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), time.Now().Add(50*time.Millisecond))
	if err != nil || len(got.latency) < 2 || got.opened < len(got.latency) {
		t.Errorf("got %d answers on %d connections, %v", len(got.latency), got.opened, err)
	}
}

// What isn't an answer to the request must not count as a fast one.
func TestOnlyAnswersCount(t *testing.T) {
	for _, reply := range []string{"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "nonsense\r\n\r\n", ""} {
		client, server := net.Pipe()
		go func() {
			_, _ = server.Read(make([]byte, 64))
			_, _ = io.WriteString(server, reply)
			_ = server.Close()
		}()
		if _, err := once(client, bufio.NewReader(client), []byte("GET")); err == nil {
			t.Errorf("%q counts as an answer", reply)
		}
		_ = client.Close()
	}
	h, err := readHead(bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\ncontent-length: 12\r\nCONNECTION: close\r\n\r\n")))
	if err != nil || h.length != 12 || !h.close {
		t.Errorf("got %+v, %v", h, err)
	}
}
