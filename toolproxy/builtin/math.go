// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"math"

	"agentrun/toolproxy/tools"
)

type mathArgs struct {
	Expression string `json:"expression"`
}

// Bounds of an expression.
const (
	maxExpression = 1000 // bytes
	maxDepth      = 64   // of parentheses, signs and powers within each other: the parser recurses once for each
)

func calculate(_ context.Context, _ tools.Call, args mathArgs) (any, error) {
	v, err := evaluate(args.Expression)
	if err != nil {
		return nil, tools.BadArguments("expression: %v", err)
	}
	return v, nil
}

var errNotFinite = errors.New("a result is too large, or no number")

// evaluate computes an expression. Every intermediate value is checked, so that an overflow can't hide (1/(10^400) is an
// error, not 0). The work is linear in the length: there are no loops, names or functions of one's own.
func evaluate(unsafeExpression string) (float64, error) {
	if len(unsafeExpression) > maxExpression {
		return 0, problem("has %d bytes, at most %d are allowed", len(unsafeExpression), maxExpression)
	}
	p := parser{in: unsafeExpression}
	v, err := p.sum()
	if err != nil {
		return 0, err
	}
	if c := p.peek(); c != 0 || p.at < len(p.in) {
		return 0, problem("%q at byte %d can't stand there", p.in[p.at], p.at)
	}
	return v + 0, nil // no negative zero: -0 + 0 is 0
}

// finite lets a number pass and refuses what JSON can't say.
func finite(v float64) (float64, error) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errNotFinite
	}
	return v, nil
}
