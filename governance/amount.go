// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Amount is a cost in millionths of the unit that plans are priced in.
type Amount = int64

// Unlimited, as a quota, is none. It is written "unlimited" in files; 0 allows nothing.
const Unlimited int64 = -1

// MaxQuota is the largest quota: 2^53-1, which every reader of JSON keeps exactly. It leaves room below the end of int64 for
// the sum of any two.
const MaxQuota int64 = 1<<53 - 1

const unit = 1_000_000

var errAmount = errors.New("want a decimal number such as 0.02, with at most six digits behind the point")

// ParseAmount reads digits, and up to six behind a point: "0.02" is 20000. There is no sign, no exponent and no rounding: what
// has no exact value in millionths is refused.
func ParseAmount(s string) (Amount, error) {
	whole, part, point := strings.Cut(s, ".")
	if !digits(whole, 10) || point && !digits(part, 6) || len(whole) > 1 && whole[0] == '0' {
		return 0, fmt.Errorf("amount %.40q: %w", s, errAmount)
	}
	n, err := strconv.ParseInt(whole+(part + "000000")[:6], 10, 64)
	if err != nil || n > MaxQuota {
		return 0, fmt.Errorf("amount %.40q: at most %s", s, FormatAmount(MaxQuota))
	}
	return n, nil
}

func digits(s string, most int) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// FormatAmount writes what ParseAmount reads, in the shortest form; "unlimited" for Unlimited.
func FormatAmount(a Amount) string {
	if a == Unlimited {
		return "unlimited"
	}
	sign := ""
	n := uint64(a)
	if a < 0 {
		sign, n = "-", -n
	}
	s := fmt.Sprintf("%s%d.%06d", sign, n/unit, n%unit)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Multiplier returns how many quarters a stake raises quotas to: 4 below 1000, 5 from 1000, 6 from 5000, 8 from 20000 (M-19).
func Multiplier(stake int64) (quarters int64) {
	switch {
	case stake >= 20000:
		return 8
	case stake >= 5000:
		return 6
	case stake >= 1000:
		return 5
	default:
		return 4
	}
}

// MultiplierText writes quarters as M-19 does: 1.0, 1.25, 1.5, 2.0.
func MultiplierText(quarters int64) string {
	switch quarters {
	case 8:
		return "2.0"
	case 6:
		return "1.5"
	case 5:
		return "1.25"
	default:
		return "1.0"
	}
}

// scale raises a quota, rounding down; it stops at MaxQuota. Unlimited stays so.
func scale(quota, quarters int64) int64 {
	if quota <= 0 {
		return quota
	}
	hi, lo := bits.Mul64(uint64(quota), uint64(quarters))
	if hi != 0 || lo/4 > uint64(MaxQuota) {
		return MaxQuota
	}
	return int64(lo / 4)
}

// narrower returns the smaller of two quotas.
func narrower(a, b int64) int64 {
	if a == Unlimited {
		return b
	}
	if b == Unlimited {
		return a
	}
	return min(a, b)
}

// Amounts are what a call uses: cost in millionths, and tokens.
type Amounts struct {
	Cost   int64 `json:"cost"`
	Tokens int64 `json:"tokens"`
}

func (a Amounts) plus(b Amounts) Amounts { return Amounts{a.Cost + b.Cost, a.Tokens + b.Tokens} }

func (a Amounts) minus(b Amounts) Amounts { return Amounts{a.Cost - b.Cost, a.Tokens - b.Tokens} }

// clip makes what others say something that can be counted with: from 0 to MaxQuota.
func (a Amounts) clip() Amounts {
	return Amounts{min(max(a.Cost, 0), MaxQuota), min(max(a.Tokens, 0), MaxQuota)}
}

func least(a, b Amounts) Amounts { return Amounts{min(a.Cost, b.Cost), min(a.Tokens, b.Tokens)} }

func most(a, b Amounts) Amounts { return Amounts{max(a.Cost, b.Cost), max(a.Tokens, b.Tokens)} }

func (a Amounts) within(b Amounts) bool { return a.Cost <= b.Cost && a.Tokens <= b.Tokens }

// left is what a cap leaves of what is used; Unlimited leaves MaxQuota, whatever that is.
func (a Amounts) left(used Amounts) Amounts {
	return Amounts{leftOf(a.Cost, used.Cost), leftOf(a.Tokens, used.Tokens)}
}

func leftOf(quota, used int64) int64 {
	if quota == Unlimited {
		return MaxQuota
	}
	return max(quota-used, 0)
}
