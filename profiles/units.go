// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written "256MiB", "256M", "256MB" or 268435456.
// k, M and G are powers of 1024 with or without i and B: cgroup limits are set in pages, and a limit that is 5 % off
// because of one letter helps nobody.
type Size uint64

// The units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

// ParseSize reads a Size; a plain number is bytes. Signs, spaces, fractions and exponents are refused.
func ParseSize(s string) (Size, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	unit, ok := sizeUnit(s[digits:])
	if digits == 0 || !ok {
		return 0, fmt.Errorf("size %q: want a whole number and k, M or G, such as 256MiB", s)
	}
	n, err := strconv.ParseUint(s[:digits], 10, 64)
	if err != nil || n > math.MaxInt64/uint64(unit) {
		return 0, fmt.Errorf("size %q: too large", s)
	}
	return Size(n) * unit, nil
}

func sizeUnit(s string) (Size, bool) {
	switch s {
	case "", "B":
		return 1, true
	case "k", "K", "kB", "KB", "kiB", "KiB", "ki", "Ki":
		return KiB, true
	case "m", "M", "mB", "MB", "MiB", "Mi":
		return MiB, true
	case "g", "G", "gB", "GB", "GiB", "Gi":
		return GiB, true
	}
	return 0, false
}

// String writes the size in the largest unit that divides it.
func (s Size) String() string {
	switch {
	case s != 0 && s%GiB == 0:
		return strconv.FormatUint(uint64(s/GiB), 10) + "GiB"
	case s != 0 && s%MiB == 0:
		return strconv.FormatUint(uint64(s/MiB), 10) + "MiB"
	case s != 0 && s%KiB == 0:
		return strconv.FormatUint(uint64(s/KiB), 10) + "KiB"
	}
	return strconv.FormatUint(uint64(s), 10) + "B"
}

// MarshalText writes what ParseSize reads, so that a profile printed as JSON is a profile again.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what ParseSize reads.
func (s *Size) UnmarshalText(b []byte) (err error) { *s, err = ParseSize(string(b)); return err }

// Duration is a span of time, written "60s", "1m30s", "500ms", or "none" for NoLimit.
type Duration time.Duration

// NoLimit is a time limit that there isn't: 292 years. It compares as what it is, more than any other.
const NoLimit = Duration(math.MaxInt64)

// ParseDuration reads a Duration. A bare number is refused: seconds and milliseconds are too easily mixed up.
func ParseDuration(s string) (Duration, error) {
	if s == "none" {
		return NoLimit, nil
	}
	t, err := time.ParseDuration(s)
	if err != nil || t < 0 || strings.HasPrefix(s, "+") || s == "0" || s == "-0" {
		return 0, fmt.Errorf("duration %q: want a number with a unit, such as 60s", s)
	}
	return Duration(t), nil
}

// String writes NoLimit as none, whole seconds as such, the unit of the spec's ranges, and the rest as time.Duration does.
func (d Duration) String() string {
	if d == NoLimit {
		return "none"
	}
	if t := time.Duration(d); t%time.Second != 0 {
		return t.String()
	}
	return strconv.FormatInt(int64(d)/int64(time.Second), 10) + "s"
}

// MarshalText writes what ParseDuration reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDuration(string(b))
	return err
}

// ParseCPUs reads a number of processors such as 0.5. Exponents, hexadecimal, infinity and NaN are refused: every one of
// them has at some time passed a comparison it should have failed.
func ParseCPUs(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, fmt.Errorf("processors %q: want a decimal number such as 0.5", s)
	}
	return f, nil
}

// Value is a number compared with a register. Symbol keeps how it was written, for display; N decides.
type Value struct {
	N      uint64
	Symbol string
}

// ParseValue reads a decimal, 0x or 0o number, a symbol such as AF_UNIX, or symbols joined by |.
func ParseValue(s string) (Value, error) {
	if n, err := parseUint(s); err == nil {
		return Value{N: n}, nil
	}
	var n uint64
	for part := range strings.SplitSeq(s, "|") {
		v, ok := SymbolValue(strings.TrimSpace(part))
		if !ok {
			return Value{}, fmt.Errorf("value %q: neither a number nor a known symbol (docs/profiles.md lists them)", s)
		}
		n |= v
	}
	return Value{N: n, Symbol: s}, nil
}

// parseUint takes no leading zero: 0600 is octal to YAML 1.1 and to C, decimal to YAML 1.2 and JSON.
func parseUint(s string) (uint64, error) {
	if strings.Contains(s, "_") || len(s) > 1 && s[0] == '0' && s[1] >= '0' && s[1] <= '9' {
		return 0, errors.New("leading zero or underscore")
	}
	return strconv.ParseUint(s, 0, 64)
}

// String writes the symbol where there is one, else the number in hexadecimal.
func (v Value) String() string {
	if v.Symbol != "" {
		return v.Symbol
	}
	return "0x" + strconv.FormatUint(v.N, 16)
}

// MarshalText writes what ParseValue reads; as text because JSON numbers lose bits above 2^53.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what ParseValue reads.
func (v *Value) UnmarshalText(b []byte) (err error) { *v, err = ParseValue(string(b)); return err }
