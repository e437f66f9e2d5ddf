// SPDX-License-Identifier: Apache-2.0

// Command goprogram is what a Go agent does: goroutines, files, HTTP over loopback, a child, signals.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	for _, step := range []func() (string, error){goroutines, files, loopback, child, signals} {
		word, err := step()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(word)
	}
}

func goroutines() (string, error) {
	var wg sync.WaitGroup
	results := make([]int, 64)
	for i := range results {
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			results[i] = i
		})
	}
	wg.Wait()
	sum := 0
	for _, r := range results {
		sum += r
	}
	return fmt.Sprint("sum ", sum), nil
}

func files() (string, error) {
	dir, err := os.MkdirTemp("", "g-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if err := root.WriteFile("f", []byte("file"), 0o600); err != nil {
		return "", err
	}
	b, err := os.ReadFile(filepath.Join(dir, "f"))
	return string(b), err
}

func loopback() (string, error) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "http "+r.URL.Path) }))
	reply, err := http.Get("http://" + l.Addr().String() + "/path")
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	b, err := io.ReadAll(reply.Body)
	return string(b), err
}

func child() (string, error) {
	out, err := exec.Command("sh", "-c", "echo child").Output()
	return strings.TrimSpace(string(out)), err
}

func signals() (string, error) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		return "", err
	}
	return (<-c).String(), nil
}
