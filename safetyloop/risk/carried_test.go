// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"strings"
	"testing"
	"time"
)

// S-7 (A-L5): every row of the tables is reached by a hint made of it, so that none is misspelled, and gives
// its reason.
func TestS7EveryCarrierIsFound(t *testing.T) {
	for name, of := range lexicon().carriers {
		for _, c := range of {
			value := "./evil"
			if c.holds != "" {
				value = strings.TrimPrefix(strings.Fields(c.holds)[0], "^") + "/evil"
			}
			hint := name + " '" + value + "' a.txt"
			switch {
			case strings.HasPrefix(c.option, "--"):
				hint = name + " " + c.option + "='" + value + "' a.txt"
			case strings.HasPrefix(c.option, "-"):
				hint = name + " " + c.option + " '" + value + "' a.txt"
			}
			carries(t, hint)
			// Within a sentence: "find" and the like are words as well, what follows makes them commands.
			carries(t, "as agreed: "+hint)
			for _, u := range strings.Fields(c.usual) {
				if strings.HasSuffix(u, "/") || strings.HasSuffix(u, ":") || c.option == "" {
					continue
				}
				hint := name + " " + c.option + " '" + u + "' a.txt"
				if a := Assess(hint, work); with(a, "carried_command") {
					t.Errorf("%q: got %+v, want nothing of what is usual", hint, a.Factors)
				}
				if !strings.HasSuffix(u, "=") { // a longer name is another program
					carries(t, strings.Replace(hint, "'"+u+"'", "'"+u+"evil'", 1))
				}
			}
		}
	}
	for name, of := range lexicon().spawners {
		for _, c := range of {
			for _, call := range strings.Fields(c.holds) {
				if call != "`" && call != "doshellscript" {
					carries(t, name+" -e '"+call+"1'")
				}
			}
		}
	}
	for name, of := range lexicon().variables {
		for _, c := range of {
			value := "./evil"
			if c.holds != "" {
				value = strings.TrimPrefix(strings.Fields(c.holds)[0], "^") + "/evil"
			}
			for _, hint := range []string{"V='" + value + "' ls", "export V='" + value + "'", "env V='" + value + "' ls", "sudo V='" + value + "' ls"} {
				carries(t, strings.Replace(hint, "V=", name+"=", 1))
			}
		}
	}
}

func carries(t *testing.T, hint string) {
	t.Helper()
	if a := Assess(hint, work); !with(a, "carried_command") || a.Tier < Confirm {
		t.Errorf("%q: got %d, %+v, want a carried command", hint, a.Score, a.Factors)
	}
}

// The tables are asked for every word of a hint: the work stays linear.
func TestS7CarriersAreLinear(t *testing.T) {
	for _, unit := range []string{"tar -I x ", "git -c alias.x ", "vim ! ", "LD_PRELOAD=x ", "find -exec x ", "sed 1e ", "%2e", "%25"} {
		short, long := strings.Repeat(unit, MaxHint/8/len(unit)), strings.Repeat(unit, MaxHint/len(unit))
		measure := func(hint string) time.Duration {
			best := time.Hour
			for range 3 {
				begin := time.Now()
				sound(t, unit, Assess(hint, work))
				best = min(best, time.Since(begin))
			}
			return best
		}
		if a, b := measure(short), measure(long); b > 64*a && b > time.Second {
			t.Errorf("%q: 8 times the text takes %v after %v", unit, b, a)
		}
	}
}
