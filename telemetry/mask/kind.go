// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// Kind is what was masked. Its name stands in the mark and is stable.
type Kind uint8

const (
	// Invalid is the zero value: nothing is of this kind.
	Invalid Kind = iota
	// Secret is the value of a sensitive name: secret, token, api_key.
	Secret
	// Password is one in a URL or the value of a name that says so.
	Password
	// Authorization is the value of such a header, or what follows Bearer or Basic.
	Authorization
	// Cookie is the value of a Cookie or Set-Cookie header.
	Cookie
	// APIKey is a token known by its prefix.
	APIKey
	// AWSKey is an access key id.
	AWSKey
	// JWT is a JSON Web Token, signed or encrypted.
	JWT
	// PrivateKey is a PEM block of a private key, whole or cut.
	PrivateKey
	// Known is a string that the caller named in Options.Known.
	Known
	// Email is an address.
	Email
	// Phone is a phone number.
	Phone
	// IBAN is an account number whose checksum is right.
	IBAN
	// Card is a card number whose checksum is right.
	Card
	// IP is an IPv4 or IPv6 address; masked only with Options.IPs.
	IP
	// Unstable stands for a whole text that would not come to rest.
	Unstable
)

var kindNames = [...]string{
	Secret: "secret", Password: "password", Authorization: "authorization", Cookie: "cookie", APIKey: "api_key",
	AWSKey: "aws_key", JWT: "jwt", PrivateKey: "private_key", Known: "known", Email: "email", Phone: "phone",
	IBAN: "iban", Card: "card", IP: "ip", Unstable: "unstable",
}

func (k Kind) String() string {
	if k == Invalid || int(k) >= len(kindNames) {
		return "invalid"
	}
	return kindNames[k]
}

const markOpen = "[masked:"

// Mark is what stands in place of a value of kind k.
func (k Kind) Mark() string { return markOpen + k.String() + "]" }

// markAt gives the length of the mark at s[i], or 0. Only exact marks count: something that begins like one may hide a
// secret.
func markAt(s string, i int) int {
	if !strings.HasPrefix(s[i:], markOpen) {
		return 0
	}
	rest := s[i+len(markOpen):]
	for _, name := range kindNames[1:] {
		if len(rest) > len(name) && rest[len(name)] == ']' && rest[:len(name)] == name {
			return len(markOpen) + len(name) + 1
		}
	}
	return 0
}
