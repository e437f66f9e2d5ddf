// SPDX-License-Identifier: Apache-2.0

// Package subid reads /etc/subuid and /etc/subgid: which ids an administrator has given to a user beside the own one (subuid(5)).
//
//	ranges, err := subid.Of(text, "alice", 1000)
//
// It guarantees that every range it gives lies within 1 and 4294967294, holds at least one id and not the user's own.
//
// Errors name the line. One malformed line refuses the whole file: who reads on after a line that can't be understood may give out
// ids that the line was to keep for somebody else.
//
// It does not protect against two users who were given the same range, and it can't tell whether newuidmap(1), which decides in the
// end, asks another source (nsswitch.conf, "subid").
package subid

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Range is a block of ids on the host.
type Range struct {
	First, Count uint32
}

// Has tells whether id is in the range.
func (r Range) Has(id uint32) bool { return id >= r.First && id-r.First < r.Count }

// maxLine bounds a line: a name of at most 256 bytes (useradd(8)) and two numbers.
const maxLine = 512

// Of gives the ranges of a user, who may stand in the file by name or by number, in the file's order. An empty name matches nobody.
func Of(text, name string, uid uint32) ([]Range, error) {
	var list []Range
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		who, r, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if who != strconv.FormatUint(uint64(uid), 10) && (name == "" || who != name) {
			continue
		}
		if r.Has(uid) {
			return nil, fmt.Errorf("line %d: the range holds the user's own id %d", n, uid)
		}
		list = append(list, r)
	}
	return list, nil
}

func parse(line string) (who string, r Range, err error) {
	fields := strings.Split(line, ":")
	if len(line) > maxLine || len(fields) != 3 || fields[0] == "" {
		return "", r, fmt.Errorf("%.80q is not NAME:FIRST:COUNT", line)
	}
	first, err := number(fields[1])
	if err != nil {
		return "", r, err
	}
	count, err := number(fields[2])
	if err != nil {
		return "", r, err
	}
	// The largest id means "no id" to system calls.
	if first == 0 || count == 0 || uint64(first)+uint64(count) > math.MaxUint32 {
		return "", r, fmt.Errorf("%d ids from %d on: want ids between 1 and %d", count, first, uint32(math.MaxUint32-1))
	}
	return fields[0], Range{First: first, Count: count}, nil
}

// number takes digits only: a sign, a space or an underscore is a mistake.
func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%.40q is not an id", s)
	}
	return uint32(n), nil
}

// Largest is the longest range of a list; of two equal ones the first.
func Largest(list []Range) (most Range, ok bool) {
	for _, r := range list {
		if r.Count > most.Count {
			most, ok = r, true
		}
	}
	return most, ok
}
