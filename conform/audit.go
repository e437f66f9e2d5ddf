// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"encoding/json"

	"agentrun/audit"
)

func auditVerify(in json.RawMessage) (any, error) {
	f := readFields("audit_verify", in)
	entries := f.list("entries", true)
	if err := f.done(); err != nil {
		return nil, err
	}
	type answer struct {
		Valid   bool        `json:"valid"`
		Index   *int        `json:"index"` // null if valid
		Problem *audit.Code `json:"problem"`
	}
	r := audit.VerifyEntries(entries)
	if r.Valid {
		return answer{Valid: true}, nil
	}
	return answer{Index: &r.Index, Problem: &r.Problem}, nil
}
