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
static struct launch *run_parse(const void *buf, size_t n, int *bad) {
	struct launch *l = calloc(1, sizeof(*l));
	*bad = parse(l, buf, n);
	return l;
}
static const char *arg(struct launch *l, unsigned i) { return l->argv[i]; }
static const char *env(struct launch *l, unsigned i) { return l->envp[i]; }
static const char *path(struct launch *l, unsigned i) { return l->rules[i].path; }
*/
import "C"

import (
	"errors"
	"unsafe"
)

// ErrRefused is the stub's refusal; it gives no reasons.
var ErrRefused = errors.New("the stub refuses the message")

// Launch is what the stub read.
type Launch struct {
	Flags, BPF               uint32
	LandlockFS, Scoped       uint64
	Exe, Cwd                 string
	Args, Env, Paths         []string
	Access                   []uint64
	Resources, Curs, Maximum []uint64
}

// Parse runs parse() of parse.h.
func Parse(b []byte) (Launch, error) {
	buf := C.CBytes(b)
	defer C.free(buf)
	var bad C.int
	l := C.run_parse(buf, C.size_t(len(b)), &bad)
	defer C.free(unsafe.Pointer(l))
	if bad != 0 {
		return Launch{}, ErrRefused
	}
	r := Launch{
		Flags: uint32(l.flags), BPF: uint32(l.nbpf), LandlockFS: uint64(l.landlock_fs), Scoped: uint64(l.landlock_scoped),
		Exe: C.GoString(l.exe), Cwd: C.GoString(l.cwd),
	}
	for i := range uint32(l.nargs) {
		r.Args = append(r.Args, C.GoString(C.arg(l, C.uint(i))))
	}
	for i := range uint32(l.nenv) {
		r.Env = append(r.Env, C.GoString(C.env(l, C.uint(i))))
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
