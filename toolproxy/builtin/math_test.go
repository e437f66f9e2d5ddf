// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"math"
	"strings"
	"testing"

	"agentrun/toolproxy/gate"
)

func TestM11Math(t *testing.T) {
	k := newKit(t)
	for expression, want := range map[string]string{
		"6*7": "42", "1 + 2*3": "7", "(1+2)*3": "9", "-2^2": "-4", "2^3^2": "512", "2**10": "1024", "2^-1": "0.5", "7 % 3": "1", "-7%3": "-1",
		"sqrt(16)": "4", "abs(-3)": "3", "min(3,1,2)": "1", "max(1)": "1", "floor(-1.5)": "-2", "ceil(1.2)": "2", "round(2.5)": "3",
		"log10(1000)": "3", "log2(8)": "3", "ln(e)": "1", "exp(0)": "1", "sin(0)+cos(0)+tan(0)": "1", "pi": "3.141592653589793", "1e3": "1000", ".5": "0.5",
		"9007199254740992": "9007199254740992", "2^53-1": "9007199254740991", "--1": "1", "0*-1": "0", "1e400^0": "",
	} {
		if want == "" {
			k.refused(t, "math", `{"expression":"`+expression+`"}`, gate.CodeBadArguments)
			continue
		}
		k.want(t, "math", `{"expression":"`+expression+`"}`, want)
	}
}

func TestM11MathRefuses(t *testing.T) {
	k := newKit(t)
	for _, expression := range []string{
		"", " ", "1+", "1 2", "2pi", "2e", "(1", "1)", "1/0", "1%0", "0/0", "9^999999999", "9^9^9^9", "1/10^400", "sqrt(-1)", "log(0)", "exp(1000)", "1e309",
		"sqrt()", "sqrt(1,2)", "foo(1)", "foo", "0x10", "1_000", "inf", "nan", "1;2", "a=1", "１+１", "\x00", "1,2", "max()",
		strings.Repeat("(", 65) + "1" + strings.Repeat(")", 65), strings.Repeat("-", 65) + "1", strings.Repeat("2^", 65) + "1", strings.Repeat("1", 1001),
	} {
		if v, err := evaluate(expression); err == nil {
			t.Errorf("%.40q: got %v, want an error", expression, v)
		}
	}
	k.refused(t, "math", `{"expression":"1/0"}`, gate.CodeBadArguments)
	if _, err := evaluate(strings.Repeat("(", 60) + "1" + strings.Repeat(")", 60)); err != nil {
		t.Errorf("60 parentheses: %v", err)
	}
}

func FuzzEvaluate(f *testing.F) {
	for _, s := range []string{"6*7", "-2^-.5e1", "max(1,2,sqrt(3))%4", "((((1))))", "1e", "e^pi", "2**3", "9^9^9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := evaluate(s)
		if err != nil && v != 0 || math.IsNaN(v) || math.IsInf(v, 0) || v == 0 && math.Signbit(v) {
			t.Fatalf("%q: got %v, %v", s, v, err)
		}
		if again, err2 := evaluate("(" + s + ")"); err == nil && err2 == nil && again != v {
			t.Fatalf("%q: %v, in parentheses %v", s, v, again)
		}
	})
}

func BenchmarkMath(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := evaluate("sqrt(2)^2 + (6*7) % 5 - max(1,2,3)"); err != nil {
			b.Fatal(err)
		}
	}
}
