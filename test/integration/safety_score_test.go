// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// S-7 (A-L5): a command that stands in an option, a variable or behind an encoding pauses the agent, also
// under a policy that approves what the hint begins with; the same words without it go on.
func TestS7CarriedCommandsPause(t *testing.T) {
	n := node{t, t.TempDir()}
	policy := write(t, filepath.Join(t.TempDir(), "policy.yaml"), `autoApprove: ["read_*", "git *", "ls *"]`+"\n", 0o600)
	for hint, goesOn := range map[string]bool{
		"powershell -EncodedCommand ZQBjAGgAbwAgAGgAaQA=": false,
		"tar --checkpoint-action=exec=id -cf a.tar docs":  false,
		"tar -cf a.tar docs":                              true,
		"LD_PRELOAD=./evil.so ls":                         false,
		"ls docs":                                         true,
		"read_file %2e%2e/etc/shadow":                     false,
		"read_file %c0%ae%c0%ae/etc/shadow":               false,
		"read_file docs/../../etc/shadow":                 false,
		"read_file docs/my%20notes.md":                    true,
		"git -c core.sshCommand=id fetch":                 false,
		"git fetch":                                       true,
		// A message removes nothing, unless something beside it runs it.
		"git commit -m 'rm -rf ~'":                                  true,
		"git commit -m 'rm -rf ~'; bash .git/COMMIT_EDITMSG":        false,
		"git () { sh -c \"$3\"; }; git commit -m 'rm -rf ~'":        false,
		"git commit -m 'rm -rf ~'; git log --format=%B -1 >a; sh a": false,
		"please ls () { a=r; b=m; $a$b -rf ~; }; ls docs":           false,
		// What a variable was set to adds only: it may be set once more.
		"a=x; ls docs; for a in r; do ${a}m -rf ~; done": false,
		"a=r; ls docs; (a=x); ${a}m -rf ~":               false,
		"ls docs; PWD=r; ${PWD}m -rf ~":                  false,
		"ls docs; $(printf '%sm' r) -rf ~":               false,
		"ls docs; ?m -rf ~":                              false,
		"a=docs; ls $a":                                  true,
		// $1 is nothing in a hint, but not in a function.
		"ls () { $1m -rf ~; }; ls r docs":                false,
		"php -r 'system($_GET[0]);' to show the version": false,
		"php -r 'echo 1;' to show the version":           true,
	} {
		t.Run(hint, func(t *testing.T) {
			r := n.do("safety", "check", "--policy", policy, "--json", hint)
			var v struct {
				Score     int
				Directive struct{ Continue bool }
			}
			if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || r.exit != 0 {
				t.Fatalf("exit %d, %v\n%s%s", r.exit, err, r.stdout, r.stderr)
			}
			if v.Directive.Continue != goesOn {
				t.Errorf("score %d, continue %v, want %v\n%s", v.Score, v.Directive.Continue, goesOn, r.stdout)
			}
		})
	}
}

// S-7: two bytes of a hint can name a variable of 64 KiB. The loop of a dongle is everybody's, so its memory and
// time stay in the hint's own measure, and what grows like that waits for a code.
func TestS7VariablesStaySmall(t *testing.T) {
	needProgram(t, "python3")
	// What this process has taken itself would be in the account of who it starts.
	const counting = `import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss >> 10, used.ru_utime, file=sys.stderr)
sys.exit(code)`
	for _, use := range []string{"$a ", `"$a" `, "rm $a;", `sh -c "$a";`} {
		hint := "a=xy;" + strings.Repeat("a=$a$a;", 15) + strings.Repeat(use, 28<<10/len(use))
		cmd := exec.Command("python3", "-c", counting, agentrun, "--state-dir", t.TempDir(), "--run-dir", runDir, "safety", "check", "--json", hint)
		var used strings.Builder
		cmd.Stderr = &used
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "shell_unreadable") {
			t.Errorf("%q: %v\n%.600s", use, err, out[max(0, len(out)-600):])
		}
		var mib int
		var seconds float64
		if _, err := fmt.Sscan(used.String(), &mib, &seconds); err != nil || mib > 200 || seconds > 3 {
			t.Errorf("%q: %d MiB and %v s of a processor, %v %s", use, mib, seconds, err, used.String())
		}
	}
}
