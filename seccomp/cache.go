// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// generation is part of every cache key and stands for the code of this package. Raise it with every change that alters a
// program or a check; TestGeneration compares a fixed filter's program and fails when that was forgotten.
const generation = 1

const (
	cacheMagic = "agentrun-seccomp\x00\x00\x00\x01"
	cacheHead  = len(cacheMagic) + 2*sha256.Size // magic, key, checksum of the program
	// maxCacheFiles bounds what profiles changed over years leave behind: when it is reached the cache is emptied.
	maxCacheFiles = 64
)

// CompileCached is Compile with the result kept as a file in dir. Compiling takes milliseconds, reading tens of microseconds.
//
// The file decides what an agent may do, so it is believed only when nobody else can have written it: dir and file
// belong to this process's user, dir has no permission for others, the file is regular with mode 0600 and one link, both are
// opened without following a link, and the file repeats its key and the checksum of the program. The checksum finds damage,
// not malice; malice is kept out by the owner and mode. The key covers the filter, the architecture, the options, the version of libseccomp in
// memory and this package's generation. Whatever is wrong with the cache, the filter is compiled instead and Program.CacheErr
// says why. An empty dir means no cache.
func (f Filter) CompileCached(dir string, o Options) (Program, error) {
	if dir == "" {
		return f.Compile(o)
	}
	key := f.key(o)
	d, cacheErr := openCache(dir)
	if cacheErr == nil {
		defer d.Close()
		code, err := readCache(d, key)
		if err == nil {
			return Program{code: code, Cached: true}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			cacheErr = err
		}
	}
	p, err := f.Compile(o)
	if err != nil {
		return p, err
	}
	if d != nil {
		cacheErr = errors.Join(cacheErr, writeCache(d, key, p.code))
	}
	p.CacheErr = cacheErr
	return p, nil
}

// Digest is the same for filters that compile to the same program here, and differs for others.
func (f Filter) Digest() [sha256.Size]byte { return f.key(Options{}) }

// key digests everything the program depends on. Strings are written with their length, so that no two filters share an encoding.
func (f Filter) key(o Options) [sha256.Size]byte {
	e := encoder{buf: make([]byte, 0, 16384)}
	info, _ := o.Arch.info() // an unknown architecture fails in Compile
	e.num(generation, uint64(info.audit))
	for _, v := range version() {
		e.num(uint64(v))
	}
	plain := uint64(0)
	if o.Plain {
		plain = 1
	}
	e.num(plain, uint64(f.Unlisted), uint64(f.UnlistedErrno), uint64(len(f.Rules)))
	for _, r := range f.Rules {
		present := uint64(0)
		if r.IfPresent {
			present = 1
		}
		why := uint64(0) // its text does not matter to the program, but its absence is an error that a hit must not hide
		if r.Why != "" {
			why = 1
		}
		e.num(uint64(r.Action), uint64(r.Errno), present, why, uint64(len(r.Args)), uint64(len(r.Syscalls)))
		for _, a := range r.Args {
			e.num(uint64(a.Index), uint64(a.Op), a.Value, a.Mask)
		}
		for _, s := range r.Syscalls {
			e.num(uint64(len(s)))
			e.buf = append(e.buf, s...)
		}
	}
	return sha256.Sum256(e.buf)
}

type encoder struct{ buf []byte }

func (e *encoder) num(vs ...uint64) {
	for _, v := range vs {
		e.buf = binary.LittleEndian.AppendUint64(e.buf, v)
	}
}

func openCache(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open seccomp cache", Path: dir, Err: err}
	}
	d := os.NewFile(uintptr(fd), dir)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "stat seccomp cache", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		d.Close()
		return nil, fmt.Errorf("use seccomp cache %s: owner %d mode %#o, want owner %d and no permission for others", dir, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return d, nil
}

func readCache(d *os.File, key [sha256.Size]byte) ([]byte, error) {
	name := hex.EncodeToString(key[:])
	wrap := func(err error) error { return fmt.Errorf("read seccomp cache %s/%s: %w", d.Name(), name, err) }
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, wrap(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, wrap(err)
	}
	if st.Mode != unix.S_IFREG|0o600 || int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		return nil, wrap(fmt.Errorf("owner %d mode %#o links %d: not written by agentrun", st.Uid, st.Mode, st.Nlink))
	}
	if st.Size <= int64(cacheHead) || st.Size > int64(cacheHead+maxInsns*insnSize) || (st.Size-int64(cacheHead))%insnSize != 0 {
		return nil, wrap(fmt.Errorf("%d bytes are no program", st.Size))
	}
	buf := make([]byte, st.Size)
	if n, err := unix.Pread(fd, buf, 0); err != nil || n != len(buf) {
		return nil, wrap(fmt.Errorf("%d of %d bytes: %w", n, len(buf), errors.Join(err, fs.ErrInvalid)))
	}
	code := buf[cacheHead:]
	sum := sha256.Sum256(code)
	head := append(append([]byte(cacheMagic), key[:]...), sum[:]...)
	if !bytes.Equal(buf[:cacheHead], head) {
		return nil, wrap(errors.New("damaged"))
	}
	return code, nil
}

// writeCache puts the file in place by rename, so that a reader never sees half of one.
func writeCache(d *os.File, key [sha256.Size]byte, code []byte) error {
	name := hex.EncodeToString(key[:])
	dir := int(d.Fd())
	names, err := d.Readdirnames(maxCacheFiles)
	if err == nil && len(names) == maxCacheFiles {
		for _, n := range names {
			unix.Unlinkat(dir, n, 0) // best effort: what is left is only in the way
		}
	}
	tmp := ".new-" + rand.Text()
	fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make seccomp cache file in %s: %w", d.Name(), err)
	}
	file := os.NewFile(uintptr(fd), tmp)
	sum := sha256.Sum256(code)
	buf := append(append([]byte(cacheMagic), key[:]...), sum[:]...)
	_, err = file.Write(append(buf, code...))
	// A umask can only take bits of 0600 away, which reading then refuses; set it outright.
	err = errors.Join(err, file.Chmod(0o600), file.Close())
	if err == nil {
		err = unix.Renameat(dir, tmp, dir, name)
	}
	if err != nil {
		unix.Unlinkat(dir, tmp, 0)
		return fmt.Errorf("write seccomp cache %s/%s: %w", d.Name(), name, err)
	}
	return nil
}
