// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
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

// AllPorts sends to listener, a socket of Sockets, every TCP connection to an address that isn't the sandbox's own, whatever its port but
// those in but, and to datagrams, the first of RelaySockets, every UDP datagram likewise: one socket instead of 65535. LocalAddr of an
// accepted connection is the original destination, its port included. It lasts until the returned Closer is closed or the namespace ends;
// Capture comes before. What the sandbox serves to itself, on loopback or its dummy addresses, is found as ever.
//
// The kernel asks a program of ours when it looks for the socket of a packet (BPF_PROG_TYPE_SK_LOOKUP, Linux 5.9). To load it takes CAP_BPF
// and CAP_NET_ADMIN over the host: hostcaps.SocketLookup tells. The program can only choose between our sockets and the usual way.
func (ns *NS) AllPorts(listener, datagrams *os.File, but ...uint16) (io.Closer, error) {
	held, err := ns.allPorts([]*os.File{listener, datagrams}, but)
	if err != nil {
		return nil, fmt.Errorf("capture all ports: %w", err)
	}
	return held, nil
}

func (ns *NS) allPorts(ours []*os.File, but []uint16) (link.Link, error) {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: uint32(len(ours))}) //nolint:gosec // two
	if err != nil {
		return nil, err
	}
	defer func() { _ = sockets.Close() }() // the program holds it
	for i, f := range ours {
		raw, err := f.SyscallConn()
		if err != nil {
			return nil, err
		}
		if rerr := raw.Control(func(fd uintptr) { err = sockets.Put(uint32(i), uint64(fd)) }); rerr != nil || err != nil { //nolint:gosec // two
			return nil, errors.Join(rerr, err)
		}
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "agentrun_ports", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, Instructions: toOurs(sockets, but),
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Close() }() // the link holds it
	return link.AttachNetNs(int(ns.file.Fd()), program)
}

// toOurs lets everything go its usual way that is neither TCP nor UDP, is for a port of but, or for an address of the sandbox's own. Going
// the usual way is also what happens where the socket is gone.
func toOurs(sockets *ebpf.Map, but []uint16) asm.Instructions {
	list := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, lookupProtocol, asm.Word),
		asm.Mov.Imm(asm.R8, 0),
		asm.JEq.Imm(asm.R0, unix.IPPROTO_TCP, "port"),
		asm.Mov.Imm(asm.R8, 1),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "usual"),
		asm.LoadMem(asm.R0, asm.R6, lookupLocalPort, asm.Word).WithSymbol("port"),
	}
	for _, port := range but {
		list = append(list, asm.JEq.Imm(asm.R0, int32(port), "usual"))
	}
	return append(append(list, own()...),
		asm.StoreMem(asm.RFP, -4, asm.R8, asm.Word).WithSymbol("ours"),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
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

// own goes to "usual" for 127.0.0.0/8, ::1 and the dummy addresses of Capture, which is where answers to the agent's datagrams go, and to
// "ours" for others. An IPv4 packet for a socket of IPv6 is one of IPv4 here.
func own() asm.Instructions {
	word := func(to asm.Register, offset int16) asm.Instructions { // as a number, from network order
		return asm.Instructions{asm.LoadMem(to, asm.R6, offset, asm.Word), asm.HostTo(asm.BE, to, asm.Word)}
	}
	d4 := dummy4.As4()
	d6 := dummy6.As16()
	part := func(i int) int32 { return int32(binary.BigEndian.Uint32(d6[4*i:])) } //nolint:gosec // as the kernel compares it
	list := asm.Instructions{
		asm.LoadMem(asm.R0, asm.R6, lookupFamily, asm.Word),
		asm.JEq.Imm(asm.R0, unix.AF_INET6, "six"),
	}
	list = append(list, word(asm.R0, lookupLocalIP4)...)
	list = append(list,
		asm.JEq.Imm32(asm.R0, int32(binary.BigEndian.Uint32(d4[:])), "usual"), //nolint:gosec // as above
		asm.RSh.Imm(asm.R0, 24),
		asm.JEq.Imm(asm.R0, 127, "usual"),
		asm.Ja.Label("ours"),
		asm.LoadMem(asm.R0, asm.R6, lookupLocalIP6+8, asm.Word).WithSymbol("six"),
		asm.JNE.Imm(asm.R0, 0, "ours"), // both end in 0:0:0:1
	)
	list = append(list, word(asm.R0, lookupLocalIP6+12)...)
	list = append(list, asm.JNE.Imm32(asm.R0, part(3), "ours"))
	list = append(list, word(asm.R0, lookupLocalIP6)...)
	list = append(list, word(asm.R1, lookupLocalIP6+4)...)
	return append(list,
		asm.JEq.Imm32(asm.R0, 0, "loopback"),
		asm.JNE.Imm32(asm.R0, part(0), "ours"),
		asm.JEq.Imm32(asm.R1, part(1), "usual"),
		asm.Ja.Label("ours"),
		asm.JEq.Imm32(asm.R1, 0, "usual").WithSymbol("loopback"),
	)
}
