// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"agentrun/internal/kept"
)

// generation is part of every cache key and stands for the code of this package. Raise it with every change that alters a
// program or a check; TestGeneration compares a fixed filter's program and fails when that was forgotten.
const generation = 4

// cache is where programs are kept: profiles changed over years leave at most 64 behind.
func cache(dir string) kept.Folder {
	return kept.Folder{Path: dir, Magic: "agentrun-seccomp\x00\x00\x00\x01", Max: maxInsns * insnSize, Files: 64}
}

// CompileCached is Compile with the result kept as a file in dir. Compiling takes milliseconds, reading tens of microseconds.
//
// The file decides what an agent may do, so nobody else can have written it (package kept). The key covers the filter, the
// architecture, the options and this package's generation. Whatever is wrong with the cache,
// the filter is compiled instead and Program.CacheErr says why. An empty dir means no cache.
func (f Filter) CompileCached(dir string, o Options) (Program, error) {
	if dir == "" {
		return f.Compile(o)
	}
	key := f.key(o)
	code, cacheErr := cache(dir).Get(key)
	if cacheErr == nil && (len(code) == 0 || len(code)%insnSize != 0) {
		cacheErr = fmt.Errorf("read %s/%x: %d bytes are no program", dir, key, len(code))
	}
	if cacheErr == nil {
		return Program{code: code, Cached: true}, nil
	}
	p, err := f.Compile(o)
	if err != nil {
		return p, err
	}
	if errors.Is(cacheErr, fs.ErrNotExist) {
		cacheErr = nil
	}
	p.CacheErr = errors.Join(cacheErr, cache(dir).Put(key, p.code))
	return p, nil
}

// Digest is the same for filters that compile to the same program here, and differs for others.
func (f Filter) Digest() [sha256.Size]byte { return f.key(Options{}) }

// key digests everything the program depends on. Strings are written with their length, so that no two filters share an encoding.
func (f Filter) key(o Options) [sha256.Size]byte {
	e, digest := encoder{buf: make([]byte, 0, 1024)}, sha256.New()
	info, _ := o.Arch.info() // an unknown architecture fails in Compile
	e.num(generation, uint64(info.audit))
	e.num(uint64(f.Unlisted), uint64(f.UnlistedErrno), uint64(len(f.Rules)))
	for _, r := range f.Rules {
		// The text of Why does not matter to the program, but its absence is an error that a hit must not hide.
		e.num(uint64(r.Action), uint64(r.Errno), flag(r.IfPresent), flag(r.Why != ""))
		e.num(uint64(len(r.Args)), uint64(len(r.Syscalls)))
		for _, a := range r.Args {
			e.num(uint64(a.Index), uint64(a.Op), a.Value, a.Mask)
		}
		for _, s := range r.Syscalls {
			e.num(uint64(len(s)))
			e.buf = append(e.buf, s...)
		}
		digest.Write(e.buf)
		e.buf = e.buf[:0]
	}
	digest.Write(e.buf)
	return [sha256.Size]byte(digest.Sum(nil))
}

func flag(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

type encoder struct{ buf []byte }

func (e *encoder) num(vs ...uint64) {
	for _, v := range vs {
		e.buf = binary.LittleEndian.AppendUint64(e.buf, v)
	}
}
