// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// TCP buffers of sockets in the namespace. The kernel's own bounds, 6 to 32 MiB, are made for long lines; here every connection is over
// loopback, and what a buffer holds is memory of the host: of a connection that nobody has accepted, nobody's. setsockopt(2) can go
// up to net.core.rmem_max all the same; profiles refuse that where the agent is trusted least.
const (
	mostBuffer  = 96 << 10
	leastBuffer = 32 << 10 // half a packet of loopback's: slower, and it works
	bufferShare = 20 * 2 * 320

	// Connections that were closed wait a minute in slab that no cgroup is charged for, and in the hash table of all the host's. The kernel
	// lets a namespace of a host with 24 GiB have 131072; one that finds no place is gone at once, which over loopback harms nobody.
	mostTimeWait = 4096

	// Keys, options and lists of sources of a socket are slab that no cgroup is charged for, up to optmem_max: 128 KiB since Linux 6.7, the
	// figure of before here. A namespace has its own since 6.8; an older kernel shows it to the host's alone.
	mostOptions = 20 << 10
)

// bufferSize is what 20 runs of ring 3, each with 320 sockets full in both directions, need to stay below the pressure mark of
// tcp_mem. It is the host's and not shown in other namespaces: then the least.
var bufferSize = sync.OnceValue(func() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_mem")
	if f := strings.Fields(string(b)); err == nil && len(f) == 3 {
		if pages, err := strconv.Atoi(f[1]); err == nil {
			return min(max(pages*os.Getpagesize()/bufferShare, leastBuffer), mostBuffer)
		}
	}
	return leastBuffer
})

// boundBuffers sets them in the namespace that the thread is in, whose sockets are all made later. A /proc/sys that can't be written is
// package hostcaps' to tell (SocketBuffers), and the operator's to accept.
func boundBuffers(size int) error {
	const optmem = "core/optmem_max"
	for name, text := range map[string]string{
		"ipv4/tcp_rmem": fmt.Sprintf("4096 %d %d", size, size), "ipv4/tcp_wmem": fmt.Sprintf("4096 %d %d", min(16<<10, size), size),
		"ipv4/tcp_max_tw_buckets": fmt.Sprint(mostTimeWait), optmem: fmt.Sprint(mostOptions),
	} {
		err := os.WriteFile("/proc/sys/net/"+name, []byte(text), 0)
		if err != nil && !errors.Is(err, unix.EROFS) && (name != optmem || !errors.Is(err, unix.ENOENT)) {
			return fmt.Errorf("bound the buffers of the new namespace: %w", err)
		}
	}
	return nil
}
