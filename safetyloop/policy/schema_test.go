// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// The published schema and Parse agree about what they can both see.
func TestSchemaAgreesWithParse(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("policy.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("policy.json")
	if err != nil {
		t.Fatal(err)
	}
	for text, valid := range map[string]bool{
		"{}": true, "{mode: enforcing, tolerance: moderate, maxAutonomousSteps: 20, confirm: server, workspace: /work}": true,
		"{deny: ['drop_*', '*'], requiresApproval: [a], autoApprove: ['read_*']}": true, "{agents: {a: {tolerance: conservative, maxAutonomousSteps: 1, deny: [x], autoApprove: [y]}}}": true,
		"{mode: on}": false, "{denny: []}": false, "{deny: a}": false, "{deny: ['']}": false, "{deny: [1]}": false, "{deny: ['[a]']}": false, "{deny: ['{a}']}": false, "{deny: null}": false, "{autoApprove: ['*']}": false, "{autoApprove: ['_*']}": false,
		"{tolerance: 50}": false, "{maxAutonomousSteps: 0}": false, "{maxAutonomousSteps: 10001}": false, "{confirm: nobody}": false, "{workspace: work}": false, "{workspace: /}": false, "{agents: {a: {mode: enforcing}}}": false,
		"{agents: {'': {}}}": false, "{agents: {a: {workspace: /x}}}": false,
	} {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		_, err := Parse("p", []byte(text))
		if bySchema := schema.Validate(value); (bySchema == nil) != valid || (err == nil) != valid {
			t.Errorf("%s: the schema says %v, Parse %v, want valid %v", text, bySchema, err, valid)
		}
	}
}
