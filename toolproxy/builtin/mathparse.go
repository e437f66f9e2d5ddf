// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// parser reads and computes in one go:
//
//	sum     = product { ("+" | "-") product }
//	product = signed { ("*" | "/" | "%") signed }
//	signed  = { "+" | "-" } power
//	power   = atom [ ("^" | "**") signed ]          so -2^2 is -4, and 2^3^2 is 2^9
//	atom    = number | name | name "(" sum { "," sum } ")" | "(" sum ")"
type parser struct {
	in    string
	at    int
	depth int
}

func problem(format string, args ...any) error { return fmt.Errorf(format, args...) }

// peek skips blanks and returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	for p.at < len(p.in) && strings.IndexByte(" \t\r\n", p.in[p.at]) >= 0 {
		p.at++
	}
	if p.at == len(p.in) {
		return 0
	}
	return p.in[p.at]
}

func (p *parser) deeper() error {
	if p.depth++; p.depth > maxDepth {
		return problem("is nested more than %d deep", maxDepth)
	}
	return nil
}

func (p *parser) sum() (float64, error) { return p.chain("+-", p.product) }

func (p *parser) product() (float64, error) { return p.chain("*/%", p.signed) }

// chain reads operands with operators between them, which bind equally and to the left.
func (p *parser) chain(operators string, operand func() (float64, error)) (float64, error) {
	v, err := operand()
	for err == nil {
		op := p.peek()
		if op == 0 || strings.IndexByte(operators, op) < 0 {
			return v, nil
		}
		p.at++
		var right float64
		if right, err = operand(); err == nil {
			v, err = operate(op, v, right)
		}
	}
	return 0, err
}

func (p *parser) signed() (float64, error) {
	if err := p.deeper(); err != nil {
		return 0, err
	}
	defer func() { p.depth-- }()
	switch p.peek() {
	case '+':
		p.at++
		return p.signed()
	case '-':
		p.at++
		v, err := p.signed()
		return -v, err
	}
	return p.power()
}

func (p *parser) power() (float64, error) {
	base, err := p.atom()
	if err != nil {
		return 0, err
	}
	switch c := p.peek(); {
	case c == '^':
		p.at++
	case c == '*' && strings.HasPrefix(p.in[p.at:], "**"):
		p.at += 2
	default:
		return base, nil
	}
	exponent, err := p.signed()
	if err != nil {
		return 0, err
	}
	return operate('^', base, exponent)
}

func operate(op byte, a, b float64) (float64, error) {
	if b == 0 && (op == '/' || op == '%') {
		return 0, problem("divides by zero")
	}
	switch op {
	case '+':
		return finite(a + b)
	case '-':
		return finite(a - b)
	case '*':
		return finite(a * b)
	case '/':
		return finite(a / b)
	case '%':
		return finite(math.Mod(a, b)) // has the sign of a, as in C, Go and JavaScript
	}
	return finite(math.Pow(a, b))
}

func (p *parser) atom() (float64, error) {
	switch c := p.peek(); {
	case c == 0 && p.at == len(p.in):
		return 0, problem("ends where a number should be")
	case c == '(':
		p.at++
		v, err := p.sum()
		if err != nil {
			return 0, err
		}
		return v, p.closing()
	case c >= '0' && c <= '9' || c == '.':
		return p.number()
	case isLetter(c):
		return p.named()
	default:
		return 0, problem("%q at byte %d can't stand there", c, p.at)
	}
}

func (p *parser) closing() error {
	if p.peek() != ')' {
		return problem("lacks a closing parenthesis at byte %d", p.at)
	}
	p.at++
	return nil
}

// number reads decimal digits with an optional fraction and exponent; no hexadecimal, no underscores, no "inf".
func (p *parser) number() (float64, error) {
	start := p.at
	p.digits()
	if p.at < len(p.in) && p.in[p.at] == '.' {
		p.at++
		p.digits()
	}
	if mark := p.at; mark < len(p.in) && p.in[mark]|0x20 == 'e' {
		p.at++
		if p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] == '-') {
			p.at++
		}
		if !p.digits() {
			p.at = mark // the constant e, which then can't stand there: 2e is no product
		}
	}
	v, err := strconv.ParseFloat(p.in[start:p.at], 64)
	if err != nil {
		return 0, problem("%.40q is no number", p.in[start:p.at])
	}
	return finite(v)
}

func (p *parser) digits() bool {
	start := p.at
	for p.at < len(p.in) && p.in[p.at] >= '0' && p.in[p.at] <= '9' {
		p.at++
	}
	return p.at > start
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

var constants = map[string]float64{"pi": math.Pi, "e": math.E}

func (p *parser) named() (float64, error) {
	start := p.at
	for p.at < len(p.in) && (isLetter(p.in[p.at]) || p.at > start && p.in[p.at] >= '0' && p.in[p.at] <= '9') {
		p.at++
	}
	name := p.in[start:p.at]
	if p.peek() != '(' {
		v, ok := constants[name]
		if !ok {
			return 0, problem("%.40q is no constant; there are pi and e", name)
		}
		return v, nil
	}
	p.at++
	args, err := p.arguments()
	if err != nil {
		return 0, err
	}
	return apply(name, args)
}

func (p *parser) arguments() ([]float64, error) {
	var args []float64
	for {
		v, err := p.sum()
		if err != nil {
			return nil, err
		}
		args = append(args, v)
		if p.peek() != ',' {
			return args, p.closing()
		}
		p.at++
	}
}

// functions of one argument. round goes half away from zero.
var functions = map[string]func(float64) float64{
	"sqrt": math.Sqrt, "abs": math.Abs, "floor": math.Floor, "ceil": math.Ceil, "round": math.Round,
	"exp": math.Exp, "log": math.Log, "ln": math.Log, "log2": math.Log2, "log10": math.Log10,
	"sin": math.Sin, "cos": math.Cos, "tan": math.Tan,
}

func apply(name string, args []float64) (float64, error) {
	f := functions[name]
	switch {
	case name == "min":
		return slices.Min(args), nil
	case name == "max":
		return slices.Max(args), nil
	case f == nil:
		return 0, problem("%.40q is no function", name)
	case len(args) != 1:
		return 0, problem("%s takes one argument, not %d", name, len(args))
	}
	return finite(f(args[0]))
}
