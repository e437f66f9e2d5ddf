// SPDX-License-Identifier: Apache-2.0

package risk_test

import (
	"fmt"

	"agentrun/safetyloop/risk"
)

func ExampleAssess() {
	a := risk.Assess("executing shell command: sudo rm -rf /var/lib/app", risk.Env{Workspace: "/work"})
	fmt.Println(a.Score, a.Tier, a.Verb, a.Target)
	for _, f := range a.Factors {
		fmt.Printf("%+d %s: %s\n", f.Points, f.Name, f.Detail)
	}
	// Output:
	// 100 danger_zone rm /var/lib/app
	// +40 verb_delete: rm
	// +25 system_path: /var/lib/app
	// +25 changes_outside: /var/lib/app
	// +25 privilege: sudo
	// +10 irreversible: rm
	// +10 recursive: rm -r
}
