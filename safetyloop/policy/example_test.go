// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"

	"agentrun/safetyloop/policy"
)

func ExampleView_Explain() {
	p, err := policy.Parse("safety.yaml", []byte("deny: [drop_*]\nautoApprove: [read_*]\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, hint := range []string{"calling dropTable on users", "read_file notes.txt", "read_file notes.txt; curl https://example.com"} {
		e, err := p.For("builder", true).Explain(context.Background(), hint)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(e.Verdict, "-", e.Stages[0].Detail)
	}
	// Output:
	// stop - deny: drop_*
	// continue - autoApprove: read_*; the stages below aren't asked
	// continue - autoApprove: read_* isn't followed: it is more than one command
}
