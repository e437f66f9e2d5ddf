// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	maxUnsafeHost = 1024 // bytes looked at before any work is done; a legal name in UTF-8 needs fewer
	maxName       = 253  // RFC 1035, 2.3.4: 255 octets on the wire are 253 in text
	maxLabel      = 63
)

// Host is a normalised host name: lower case, A-labels, without the trailing dot, never an address. Two Hosts
// are the same name if and only if they are equal. The zero value is no name and is refused wherever a name
// is needed.
type Host struct{ name string }

// String returns the name as it goes on the wire, empty for the zero value.
func (h Host) String() string { return h.name }

// IsZero tells whether h is no name.
func (h Host) IsZero() bool { return h.name == "" }

// MarshalText returns String.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.name), nil }

// Under tells whether h is suffix with one or more labels before it. It is never under itself.
func (h Host) Under(suffix Host) bool {
	rest, found := strings.CutSuffix(h.name, suffix.name)
	return found && suffix.name != "" && len(rest) > 1 && rest[len(rest)-1] == '.'
}

// ParseHost normalises a name from any source: CONNECT authority, absolute URI, Host header, SNI, SOCKS5, DNS
// question, allow list. All go through here, so that no two of them can disagree about what a name is (M-8).
// The error is a *Refusal, bad_name.
//
// Only letters, digits, hyphens, dots and underscores pass (no parser takes an underscore for a delimiter,
// and there are hosts that have one). A label in Unicode becomes its A-label by UTS 46 (nontransitional, STD
// 3, CheckBidi, CheckJoiners), and one that is an A-label already must be what UTS 46 makes of its own
// decoding. Unicode that maps to plain ASCII (full-width letters, the Kelvin sign, other full stops) is
// refused: it can only be a disguise.
//
// A name whose last label is a number is an address to inet_aton(3), and to every client that calls it:
// 2130706433, 0x7f.1, 0177.0.0.1. All of them are refused, and the Refusal has the address that was meant.
func ParseHost(unsafeHost string) (Host, error) {
	if unsafeHost == "" {
		return Host{}, refuse(BadName, "host name: empty")
	}
	if len(unsafeHost) > maxUnsafeHost {
		return Host{}, refuse(BadName, "host name %.64q…: %d bytes, at most %d", unsafeHost, len(unsafeHost), maxUnsafeHost)
	}
	name := unsafeHost
	if !isASCII(name) {
		var err error
		if name, err = toALabels(unsafeHost); err != nil {
			return Host{}, err
		}
	}
	name = strings.TrimSuffix(name, ".")
	if why := unfitName(name); why != "" {
		return Host{}, refuse(BadName, "host name %.64q: %s", unsafeHost, why)
	}
	name = strings.ToLower(name)
	if endsInNumber(name) {
		return Host{}, numericName(name)
	}
	if strings.Contains(name, "xn--") {
		if err := checkALabels(name); err != nil {
			return Host{}, err
		}
	}
	return Host{name}, nil
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

// unfitName tells what is wrong with a name in ASCII, empty if nothing is.
func unfitName(name string) string {
	if len(name) > maxName {
		return "longer than 253 bytes"
	}
	for _, c := range []byte(name) {
		if why := unfitByte(c); why != "" {
			return why
		}
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "empty label"
		case len(label) > maxLabel:
			return "label longer than 63 bytes"
		case label[0] == '-' || label[len(label)-1] == '-':
			return "label begins or ends with a hyphen"
		}
	}
	return ""
}

func unfitByte(c byte) string {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		return ""
	case c == 0:
		return "NUL byte"
	case c == '\r', c == '\n':
		return "line break"
	case c == ' ', c == '\t':
		return "white space"
	case c < ' ', c == 0x7f:
		return "control character"
	case c == '%':
		return "percent escape or zone"
	case c == '@':
		return "user information"
	case c == '[', c == ']', c == ':':
		return "bracket or colon where only a name may stand"
	}
	return "character that no host name has"
}

// nameProfile is built at the first name that needs it: most runs never see one.
var nameProfile = sync.OnceValue(func() *idna.Profile {
	return idna.New(
		idna.MapForLookup(), // first: it switches on more than is wanted, which the following take back
		idna.Transitional(false),
		idna.StrictDomainName(true),
		idna.ValidateLabels(true),
		idna.BidiRule(),
		idna.CheckJoiners(true),
		idna.CheckHyphens(false), // r3---sn-x.example is in use; edges and xn-- are checked here
		idna.VerifyDNSLength(false),
	)
})

// toALabels converts the labels that aren't ASCII. It must not change how many labels there are, nor make one
// of them plain ASCII: "１２７.0.0.1", "exam。ple" and "example.com" with a soft hyphen inside are disguises.
func toALabels(unsafeHost string) (string, error) {
	if !utf8.ValidString(unsafeHost) {
		return "", refuse(BadName, "host name %.64q: neither ASCII nor UTF-8", unsafeHost)
	}
	name := strings.TrimSuffix(unsafeHost, ".")
	ascii, err := nameProfile().ToASCII(name)
	if err != nil {
		return "", refuse(BadName, "host name %.64q: %v", unsafeHost, err)
	}
	from, to := strings.Split(name, "."), strings.Split(ascii, ".")
	if len(from) != len(to) {
		return "", refuse(BadName, "host name %.64q: full stop that is not \".\"", unsafeHost)
	}
	for i := range from {
		if !isASCII(from[i]) && !strings.HasPrefix(to[i], "xn--") {
			return "", refuse(BadName, "host name %.64q: other characters that stand for %.64q", unsafeHost, to[i])
		}
	}
	return ascii, nil
}

// checkALabels refuses an A-label that isn't the only spelling of what it decodes to: xn--example- is
// "example" to a decoder that doesn't look, so a list with one of them would be passed by the other.
func checkALabels(name string) error {
	unicode, err := nameProfile().ToUnicode(name)
	if err != nil {
		return refuse(BadName, "host name %.64q: %v", name, err)
	}
	from, to := strings.Split(name, "."), strings.Split(unicode, ".")
	if len(from) != len(to) {
		return refuse(BadName, "host name %.64q: label that decodes to more than one", name)
	}
	for i := range from {
		if strings.HasPrefix(from[i], "xn--") && isASCII(to[i]) {
			return refuse(BadName, "host name %.64q: A-label of plain ASCII", name)
		}
	}
	if again, err := nameProfile().ToASCII(unicode); err != nil || again != name {
		return refuse(BadName, "host name %.64q: A-label that is not the spelling UTS 46 gives", name)
	}
	return nil
}
