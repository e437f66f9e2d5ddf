// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// needsGateway is an agent that has made the gateway work once and then waits, with its connection open.
const needsGateway = `exec 3<>/dev/tcp/127.0.0.1/7600
printf 'GET /internal/tools HTTP/1.1\r\nHost: 127.0.0.1:7600\r\n\r\n' >&3
read -r -t 30 line <&3
case $line in *200*) echo up; read -r line || : ;; *) echo "the gateway says: $line" ;; esac`

// gatewayMemory weighs the gateway processes beside sandboxes, each after one request.
func (b *bench) gatewayMemory() (_ []Row, err error) {
	if _, err := os.Stat(filepath.Join(filepath.Dir(b.agentrun), "agentrun-gateway")); err != nil {
		return nil, err
	}
	// As in memory: the gateway may be nobody's child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	var rows []Row
	for _, crowd := range []int{1, b.size.crowd} {
		w := samples{}
		for range b.size.memory {
			if b.ctx.Err() != nil {
				return rows, b.ctx.Err()
			}
			if err := b.weighGateways(crowd, w); err != nil {
				return rows, err
			}
		}
		for _, what := range []string{"resident", "proportional"} {
			row := w.row(what, "MiB", nil)
			row.Name = fmt.Sprintf("agentrun-gateway, %d at once: %s", crowd, what)
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// weighGateways adds what one of the gateways of a crowd weighs.
func (b *bench) weighGateways(crowd int, w samples) (err error) {
	var held []*holder
	defer func() {
		for _, h := range held {
			err = errors.Join(err, h.release())
		}
	}()
	for range crowd {
		h, err := b.hold(b.exec(2, "/bin/bash", "-c", needsGateway))
		if err != nil {
			return err
		}
		held = append(held, h)
	}
	time.Sleep(rest)
	all, err := descendants(os.Getpid())
	if err != nil {
		return err
	}
	var rss, pss float64
	n := 0
	for _, pid := range all {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if strings.TrimSpace(string(comm)) != "agentrun-gatewa" { // the kernel keeps 15 bytes
			continue
		}
		r, err := memoryField(pid, "status", "VmRSS:")
		if err != nil {
			return err
		}
		p, err := memoryField(pid, "smaps_rollup", "Pss:")
		if err != nil {
			return err
		}
		rss, pss, n = rss+r, pss+p, n+1
	}
	if n != crowd {
		return fmt.Errorf("%d gateways beside %d sandboxes", n, crowd)
	}
	w.add("resident", rss/float64(n))
	w.add("proportional", pss/float64(n))
	return nil
}
