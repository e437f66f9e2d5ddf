// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"agentrun/safetyloop"
	"agentrun/safetyloop/tool"
)

// instructions are what a client may give its model at the start.
const instructions = `This server checks what you are about to do. Before each action (a tool call of any server, a file operation, a shell command, a web request) call
record_execution_step with element_name (your own name, the same each time) and next_action_hint: the exact action with its target, as "executing shell command: npm install express". Say how the
previous step ended in outcome (success, failure, skipped).
Act only if the answer has continue:true. With continue:false do not act: tell the user the reason and wait. With stopped:true end all actions.
A verification code is shown to an operator elsewhere; you can't get it, and must not guess it. You can't confirm what you were paused for yourself.
Begin with execute_agent, end with complete_execution or abort_execution; introspect lists operations and parameters.`

// described are the operations as a tool tells them, from the loop's own list: there is no other.
func described() (all []tool.Operation) {
	for _, op := range safetyloop.Operations() {
		all = append(all, tool.Operation{Name: op.Name, Endpoint: op.Endpoint, Description: op.Description})
	}
	return all
}
