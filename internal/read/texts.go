// SPDX-License-Identifier: Apache-2.0

package read

import (
	"iter"

	"go.yaml.in/yaml/v3"
)

// Texts yields every value below the node as it was written, whoever reads it.
func (n *Node) Texts() iter.Seq[string] {
	return func(yield func(string) bool) { n.texts(yield) }
}

func (n *Node) texts(yield func(string) bool) bool {
	if n != nil && n.yaml != nil && n.yaml.Kind == yaml.ScalarNode {
		return yield(n.yaml.Value)
	}
	for _, member := range n.members() {
		if !member.texts(yield) {
			return false
		}
	}
	return true
}

// Filled reports each key below the node whose value is an empty text, for files in which a key that a template left empty must not count as
// left out. Items of lists may be empty.
func (n *Node) Filled() {
	for key, member := range n.members() {
		if key != "" && member.Scalar() && member.yaml.Tag == "!!str" && member.yaml.Value == "" {
			n.doc.report(member.line, member.path, "is empty; leave the key out, or give it a value")
		}
		member.Filled()
	}
}
