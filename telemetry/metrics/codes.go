// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"agentrun/rings"
	"agentrun/telemetry/counts"
)

// other stands for every label value that isn't on a list.
const other = "other"

// code is the label of a code that an agent can be refused with: those that the node's counters know.
func code(c rings.Code) string {
	if counts.Known(strings.ToLower(string(c))) {
		return string(c)
	}
	return other
}

// list maps allowed values to themselves and everything else to other.
type list map[string]struct{}

func listOf(values []string) list {
	l := list{}
	for _, v := range values {
		l[v] = struct{}{}
	}
	return l
}

func (l list) label(v string) string {
	if _, ok := l[v]; ok {
		return v
	}
	return other
}
