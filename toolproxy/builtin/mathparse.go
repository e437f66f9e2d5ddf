// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"fmt"
	"math"
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

func (p *parser) sum() (float64, error) {
	v, err := p.product()
	for err == nil {
		op := p.peek()
		if op != '+' && op != '-' {
			return v, nil
		}
		p.at++
		var right float64
		if right, err = p.product(); err == nil {
			v, err = operate(op, v, right)
		}
	}
	return 0, err
}

func (p *parser) product() (float64, error) {
	v, err := p.signed()
	for err == nil {
		op := p.peek()
		if op != '*' && op != '/' && op != '%' {
			return v, nil
		}
		p.at++
		var right float64
		if right, err = p.signed(); err == nil {
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

func (p *parser) named() (float64, error) {
	start := p.at
	for p.at < len(p.in) && (isLetter(p.in[p.at]) || p.at > start && p.in[p.at] >= '0' && p.in[p.at] <= '9') {
		p.at++
	}
	name := p.in[start:p.at]
	if p.peek() != '(' {
		switch name {
		case "pi":
			return math.Pi, nil
		case "e":
			return math.E, nil
		}
		return 0, problem("%.40q is no constant; there are pi and e", name)
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

func apply(name string, args []float64) (float64, error) {
	switch name {
	case "min", "max":
		v := args[0]
		for _, a := range args[1:] {
			if name == "min" {
				v = min(v, a)
			} else {
				v = max(v, a)
			}
		}
		return v, nil
	}
	f := ofOne(name)
	switch {
	case f == nil:
		return 0, problem("%.40q is no function", name)
	case len(args) != 1:
		return 0, problem("%s takes one argument, not %d", name, len(args))
	}
	return finite(f(args[0]))
}

func ofOne(name string) func(float64) float64 {
	switch name {
	case "sqrt":
		return math.Sqrt
	case "abs":
		return math.Abs
	case "floor":
		return math.Floor
	case "ceil":
		return math.Ceil
	case "round":
		return math.Round // half away from zero
	case "exp":
		return math.Exp
	case "log", "ln":
		return math.Log
	case "log2":
		return math.Log2
	case "log10":
		return math.Log10
	case "sin":
		return math.Sin
	case "cos":
		return math.Cos
	case "tan":
		return math.Tan
	}
	return nil
}
