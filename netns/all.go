// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Offsets in struct bpf_sk_lookup (linux/bpf.h), which the kernel keeps for ever.
const (
	lookupFamily    = 8
	lookupProtocol  = 12
	lookupLocalIP4  = 40
	lookupLocalIP6  = 44
	lookupLocalPort = 60
)

// AllPorts sends to listener, a socket of Sockets, every TCP connection to an address that isn't loopback, whatever its port but those
// in but: one socket instead of 65535. LocalAddr of an accepted connection is the original destination, its port included. It lasts until
// the returned Closer is closed or the namespace ends; Capture comes before. What the sandbox serves to itself on loopback is found as ever.
//
// The kernel asks a program of ours when it looks for the socket of a packet (BPF_PROG_TYPE_SK_LOOKUP, Linux 5.9). To load it takes CAP_BPF
// and CAP_NET_ADMIN over the host: hostcaps.SocketLookup tells. The program can only choose between our socket and the usual way.
func (ns *NS) AllPorts(listener *os.File, but ...uint16) (io.Closer, error) {
	held, err := ns.allPorts(listener, but)
	if err != nil {
		return nil, fmt.Errorf("capture all ports: %w", err)
	}
	return held, nil
}

func (ns *NS) allPorts(listener *os.File, but []uint16) (link.Link, error) {
	socket, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }() // the program holds it
	raw, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	if rerr := raw.Control(func(fd uintptr) { err = socket.Put(uint32(0), uint64(fd)) }); rerr != nil || err != nil {
		return nil, errors.Join(rerr, err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "agentrun_ports", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, Instructions: toListener(socket, but),
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Close() }() // the link holds it
	return link.AttachNetNs(int(ns.file.Fd()), program)
}

// toListener lets everything go its usual way that isn't TCP, is for a port of but, or for a loopback address. Going the usual way is
// also what happens where the socket is gone.
func toListener(socket *ebpf.Map, but []uint16) asm.Instructions {
	list := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, lookupProtocol, asm.Word),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "usual"),
		asm.LoadMem(asm.R0, asm.R6, lookupLocalPort, asm.Word),
	}
	for _, port := range but {
		list = append(list, asm.JEq.Imm(asm.R0, int32(port), "usual"))
	}
	list = append(list,
		asm.LoadMem(asm.R0, asm.R6, lookupFamily, asm.Word),
		asm.JEq.Imm(asm.R0, unix.AF_INET6, "six"),
		asm.LoadMem(asm.R0, asm.R6, lookupLocalIP4, asm.Word), // in network order
		asm.HostTo(asm.BE, asm.R0, asm.Word),
		asm.RSh.Imm(asm.R0, 24),
		asm.JEq.Imm(asm.R0, 127, "usual"),
		asm.Ja.Label("ours"),
	)
	// ::1, and ::ffff:127.0.0.0/104, which a socket of IPv6 says for it.
	six := asm.Instructions{asm.LoadMem(asm.R0, asm.R6, lookupLocalIP6, asm.Word).WithSymbol("six")}
	six = append(six,
		asm.LoadMem(asm.R1, asm.R6, lookupLocalIP6+4, asm.Word),
		asm.Or.Reg(asm.R0, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, lookupLocalIP6+8, asm.Word),
		asm.Or.Reg(asm.R0, asm.R1),
		asm.JNE.Imm(asm.R0, 0, "ours"),
		asm.LoadMem(asm.R0, asm.R6, lookupLocalIP6+12, asm.Word),
		asm.HostTo(asm.BE, asm.R0, asm.Word),
		asm.JEq.Imm(asm.R0, 1, "usual"),
	)
	list = append(list, six...)
	return append(list,
		asm.Mov.Imm(asm.R1, 0).WithSymbol("ours"),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, socket.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "usual"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnSkAssign.Call(),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("usual"), // SK_PASS
		asm.Return(),
	)
}
