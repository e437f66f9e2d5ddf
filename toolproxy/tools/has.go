// SPDX-License-Identifier: Apache-2.0

package tools

import "strings"

// Has tells whether name can stand for a tool: one that is there, "llm" and "embeddings", which the model's routes are
// granted as, or one of an MCP server, which says what it has only when it is asked.
func (r *Registry) Has(name string) bool {
	if name == "llm" || name == "embeddings" || r.lookup(name) != nil {
		return true
	}
	server, _, ok := strings.Cut(name, ".")
	for _, s := range r.sources {
		if ok && s.name == server {
			return true
		}
	}
	return false
}
