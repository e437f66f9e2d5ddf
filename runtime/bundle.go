// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

func (r PlanRlimit) soft() uint64 {
	if r.Soft != nil {
		return *r.Soft
	}
	return r.Value
}

// narrowed are the profile's limits with those of a container's bundle where they are less. Engines ask for more without being asked to.
func narrowed(list []PlanRlimit, bundle []specs.POSIXRlimit) ([]PlanRlimit, error) {
	for i, b := range bundle {
		resource, ok := rlimits[b.Type]
		switch {
		case !ok:
			return nil, read.Bad("process.rlimits", "%.32q is no limit of setrlimit(2)", b.Type)
		case b.Soft > b.Hard:
			return nil, read.Bad("process.rlimits", "%s: the soft limit %d is above the hard one, %d", b.Type, b.Soft, b.Hard)
		case slices.ContainsFunc(bundle[:i], func(o specs.POSIXRlimit) bool { return o.Type == b.Type }):
			return nil, read.Bad("process.rlimits", "%s is there twice", b.Type)
		case resource == unix.RLIMIT_CORE:
			continue // less than ours would be a program of the host's for each crash: coreLimit
		}
		at := slices.IndexFunc(list, func(r PlanRlimit) bool { return r.resource == resource })
		if at < 0 {
			at = len(list)
			list = append(list, PlanRlimit{Name: strings.ToLower(strings.TrimPrefix(b.Type, "RLIMIT_")), Value: math.MaxUint64, resource: resource})
		}
		list[at].Value, list[at].Soft = min(list[at].Value, b.Hard), &b.Soft
	}
	return list, nil
}

// hostName is what sethostname(2) takes, and no more than one word of /etc/hosts.
var hostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`) })

func (s *Spec) checkBundle(bad func(path, format string, args ...any)) {
	if s.Hostname != "" && !hostName().MatchString(s.Hostname) {
		bad("hostname", "%.80q: want at most 64 letters, digits, dots, hyphens and underscores", s.Hostname)
	}
	if s.OOMScore < -1000 || s.OOMScore > 1000 {
		bad("process.oomScoreAdj", "%d: want -1000 to 1000", s.OOMScore)
	}
}
