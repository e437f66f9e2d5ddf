// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"agentrun/runtime"
)

func TestConformCommand(t *testing.T) {
	const right = `{"id":1,"op":"assign","in":{"eff_score":0.7,"has_consensus":false},"want":{"out":{"ring":2}}}` + "\n"
	wrong := strings.Replace(right, `{"ring":2}`, `{"ring":1}`, 1)
	cases := []struct {
		stdin, args, out string
		code             int
	}{
		{right, "conform", `{"id":1,"out":{"ring":2}}` + "\n", 0},
		{"?\n" + right, "conform", `"error"`, 0},
		{"", "conform", "", 0},
		{right, "conform --check", "", 0},
		{right + wrong, "conform --check", "line 2, id 1:", conformDiffers},
		{right, "conform cases.jsonl", "", runtime.ExitFailed},
	}
	for _, c := range cases {
		out, errs, code := operatorRun(t, c.stdin, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out, c.out) || c.out == "" && out != "" {
			t.Errorf("%s < %q: exit code %d, %q, %q, want %d and %q", c.args, c.stdin, code, out, errs, c.code, c.out)
		}
	}
}
