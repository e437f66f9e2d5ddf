// SPDX-License-Identifier: Apache-2.0

// Package cparse lets tests run the stub's own parser (c/parse.h) inside a Go process: the fuzzer drives
// the very lines that run as pid 1. Nothing but tests imports it.
//
// Errors: Parse returns ErrRefused for whatever the stub would refuse. It protects nothing.
package cparse

/*
#cgo CFLAGS: -I${SRCDIR}/../c -O1 -Wall -Wno-unused-function
#include <stdlib.h>
#include <string.h>
#include "parse.h"

// The message is copied into memory of exactly its size, so that one byte read too far lands outside
// of the allocation.
static struct confinement *run_confinement(const void *buf, size_t n, int *bad) {
	struct confinement *l = calloc(1, sizeof(*l));
	*bad = parse_confinement(l, buf, n);
	return l;
}
static struct command *run_command(const void *buf, size_t n, int *bad) {
	struct command *m = calloc(1, sizeof(*m));
	*bad = parse_command(m, buf, n);
	return m;
}
static struct sandbox *run_sandbox(const void *buf, size_t n, int *bad) {
	struct sandbox *s = calloc(1, sizeof(*s));
	*bad = parse_sandbox(s, buf, n);
	return s;
}
static const char *arg(struct command *m, unsigned i) { return m->argv[i]; }
static const char *env(struct command *m, unsigned i) { return m->envp[i]; }
static const char *path(struct confinement *l, unsigned i) { return l->rules[i].path; }
*/
import "C"

import (
	"errors"
	"unsafe"
)

// ErrRefused is the stub's refusal; it gives no reasons.
var ErrRefused = errors.New("the stub refuses the message")

// Confinement is what the stub read.
type Confinement struct {
	Flags, BPF               uint32
	LandlockFS, Scoped       uint64
	Cwd                      string
	Paths                    []string
	Access                   []uint64
	Resources, Curs, Maximum []uint64
}

// Command is what the stub read.
type Command struct {
	Exe, Cwd  string
	Args, Env []string
}

// Sandbox is what the stub read.
type Sandbox struct {
	Flags, Namespaces, Owner, Agent uint32
	Hostname, Root, Clocks          string
	HostLen                         uint32
}

// ParseSandbox runs parse_sandbox() of parse.h.
func ParseSandbox(b []byte) (Sandbox, error) {
	buf := C.CBytes(b)
	defer C.free(buf)
	var bad C.int
	s := C.run_sandbox(buf, C.size_t(len(b)), &bad)
	defer C.free(unsafe.Pointer(s))
	if bad != 0 {
		return Sandbox{}, ErrRefused
	}
	return Sandbox{uint32(s.flags), uint32(s.namespaces), uint32(s.owner), uint32(s.agent), C.GoString(s.hostname), C.GoString(s.root), C.GoString(s.clocks), uint32(s.hostlen)}, nil
}

// ParseConfinement runs parse_confinement() of parse.h.
func ParseConfinement(b []byte) (Confinement, error) {
	buf := C.CBytes(b)
	defer C.free(buf)
	var bad C.int
	l := C.run_confinement(buf, C.size_t(len(b)), &bad)
	defer C.free(unsafe.Pointer(l))
	if bad != 0 {
		return Confinement{}, ErrRefused
	}
	r := Confinement{
		Flags: uint32(l.flags), BPF: uint32(l.nbpf), LandlockFS: uint64(l.landlock_fs), Scoped: uint64(l.landlock_scoped),
		Cwd: C.GoString(l.cwd),
	}
	for i := range uint32(l.nrules) {
		r.Paths = append(r.Paths, C.GoString(C.path(l, C.uint(i))))
		r.Access = append(r.Access, uint64(l.rules[i].access))
	}
	for i := range uint32(l.nrlimits) {
		r.Resources = append(r.Resources, uint64(l.rlimits[i].resource))
		r.Curs = append(r.Curs, uint64(l.rlimits[i].cur))
		r.Maximum = append(r.Maximum, uint64(l.rlimits[i].max))
	}
	return r, nil
}

// ParseCommand runs parse_command() of parse.h.
func ParseCommand(b []byte) (Command, error) {
	buf := C.CBytes(b)
	defer C.free(buf)
	var bad C.int
	m := C.run_command(buf, C.size_t(len(b)), &bad)
	defer C.free(unsafe.Pointer(m))
	if bad != 0 {
		return Command{}, ErrRefused
	}
	r := Command{Exe: C.GoString(m.exe), Cwd: C.GoString(m.cwd)}
	for i := range uint32(m.nargs) {
		r.Args = append(r.Args, C.GoString(C.arg(m, C.uint(i))))
	}
	for i := range uint32(m.nenv) {
		r.Env = append(r.Env, C.GoString(C.env(m, C.uint(i))))
	}
	return r, nil
}
