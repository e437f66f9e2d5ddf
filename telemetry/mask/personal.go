// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"net/netip"
	"strings"
	"unicode/utf8"
)

// maxLocal is longer than RFC 5321 allows: senders of bulk mail write the recipient into it.
const maxLocal = 128

func isLocal(b byte) bool {
	return isAlnum(b) || strings.IndexByte("._%+-'!#$&*/=?^{|}~", b) >= 0 || b >= utf8.RuneSelf
}
func isDomain(b byte) bool { return isHyphen(b) || b == '.' || b >= utf8.RuneSelf }

// email finds an address around the @ at s[i]. "git@" is a user of a code host, and what follows "://" is userinfo's.
func email(s string, i, floor int) (span, bool) {
	start := i
	for start > floor && i-start < maxLocal && isLocal(s[start-1]) {
		start--
	}
	for start > floor && start < i && !utf8.RuneStart(s[start]) {
		start--
	}
	local := s[start:i]
	// Of "to=a@b.example", a link or a path only what follows the last of these is the address.
	if n := strings.LastIndexAny(local, "=/&?|{"); n >= 0 {
		if strings.HasSuffix(local[:n+1], "//") {
			return span{}, false
		}
		start += n + 1
		local = s[start:i]
	}
	if cut := len(local) - len(strings.TrimLeft(local, ".'*#!-^~}$%")); cut > 0 {
		start, local = start+cut, local[cut:]
	}
	if local == "" || local == "git" || start-3 >= 0 && s[start-3:start] == "://" {
		return span{}, false
	}
	end := i + 1 + run(s[i+1:], isDomain, 255)
	for end > i+1 && (s[end-1] == '.' || s[end-1] == '-') {
		end--
	}
	domain := s[i+1 : end]
	dot := strings.LastIndexByte(domain, '.')
	if dot < 1 || len(domain)-dot-1 < 2 || isDigit(domain[dot+1]) && !strings.HasPrefix(domain[dot+1:], "xn--") {
		return span{}, false
	}
	return span{start, end, Email}, true
}

// digits reads the digits from s[i] on, at most limit, with single separators between them, and gives them and the end.
func digits(s string, i int, separators string, buf *[20]byte, limit int) (d []byte, end int) {
	d, end = buf[:0], i
	for j := i; j < len(s) && len(d) < limit; j++ {
		if isDigit(s[j]) {
			d = append(d, s[j])
			end = j + 1
			continue
		}
		if strings.IndexByte(separators, s[j]) < 0 || j > end+1 {
			break
		}
	}
	return d, end
}

// card finds a card number: an issuer's first digits, the length that goes with it, and Luhn's checksum.
func card(s string, i, floor int) (span, bool) {
	if i-1 >= floor && s[i-1] == '.' && i-2 >= floor && isDigit(s[i-2]) {
		return span{}, false // the fraction of a number
	}
	var buf [20]byte
	d, end := digitGroups(s, i, &buf)
	if len(d) < 13 || !issued(d) || !luhn(d) || end < len(s) && isAlnum(s[end]) {
		return span{}, false
	}
	return span{i, end, Card}, true
}

// digitGroups reads digits with at most one blank or hyphen between two of them.
func digitGroups(s string, i int, buf *[20]byte) ([]byte, int) {
	d, end := buf[:0], i
	for j := i; j < len(s) && len(d) < len(buf); j++ {
		if isDigit(s[j]) {
			d, end = append(d, s[j]), j+1
		} else if s[j] != ' ' && s[j] != '-' || j != end {
			break
		}
	}
	return d, end
}

func issued(d []byte) bool {
	n := func(k int) (v int) {
		for _, b := range d[:k] {
			v = v*10 + int(b-'0')
		}
		return v
	}
	two, four := n(2), n(4)
	switch {
	case d[0] == '4':
		return len(d) == 13 || len(d) == 16 || len(d) == 19
	case two >= 51 && two <= 55, four >= 2221 && four <= 2720:
		return len(d) == 16
	case two == 34, two == 37:
		return len(d) == 15
	case two == 36, two == 38, two == 39, two == 30:
		return len(d) == 14 || len(d) == 16
	case two == 35, two == 60, two == 62, two == 64, two == 65, two == 81:
		return len(d) >= 16 && len(d) <= 19
	case two == 50, two >= 56 && two <= 58, two == 63, two == 67:
		return len(d) >= 13 && len(d) <= 19
	}
	return false
}

func luhn(d []byte) bool {
	sum := 0
	for i := range d {
		v := int(d[len(d)-1-i] - '0')
		if i%2 == 1 {
			if v *= 2; v > 9 {
				v -= 9
			}
		}
		sum += v
	}
	return sum%10 == 0
}

// phone finds +49 30 901820 and 0049 30 901820 (with separators; else it is a padded number), and the North American
// (555) 234-5678. National forms of elsewhere look like any other number.
func phone(s string, i, floor int) (span, bool) {
	if i > floor && strings.IndexByte("/=+.-:", s[i-1]) >= 0 && s[i] != '(' && (s[i-1] != ':' && s[i-1] != '=' || s[i] != '+') {
		return span{}, false
	}
	var buf [20]byte
	switch {
	case s[i] == '+':
		if i+1 >= len(s) || s[i+1] < '1' || s[i+1] > '9' {
			return span{}, false
		}
		d, end := digits(s, i+1, " -./()", &buf, 16)
		return number(s, i, end, len(d) >= 8 && len(d) <= 15)
	case strings.HasPrefix(s[i:], "00"):
		d, end := digits(s, i, " -/()", &buf, 18)
		ok := len(d) >= 10 && len(d) <= 17 && d[2] != '0' && end-i >= len(d)+2
		return number(s, i, end, ok)
	}
	return american(s, i)
}

func number(s string, start, end int, ok bool) (span, bool) {
	if !ok || end < len(s) && isAlnum(s[end]) {
		return span{}, false
	}
	return span{start, end, Phone}, true
}

func american(s string, i int) (span, bool) {
	j := i
	paren := s[j] == '('
	if paren {
		j++
	}
	if !threeDigits(s, j) {
		return span{}, false
	}
	j += 3
	if paren {
		if j >= len(s) || s[j] != ')' {
			return span{}, false
		}
		j++
	}
	if j < len(s) && strings.IndexByte(" -.", s[j]) >= 0 {
		j++
	} else if !paren {
		return span{}, false
	}
	if !threeDigits(s, j) || j+8 > len(s) || strings.IndexByte(" -.", s[j+3]) < 0 || run(s[j+4:], isDigit, 5) != 4 {
		return span{}, false
	}
	end := j + 8
	if end < len(s) && (s[end] == '-' || s[end] == '.' && end+1 < len(s) && isDigit(s[end+1])) {
		return span{}, false
	}
	return number(s, i, end, true)
}

// threeDigits: an area code or exchange; neither begins with 0 or 1.
func threeDigits(s string, i int) bool {
	return i+3 <= len(s) && s[i] >= '2' && isDigit(s[i]) && isDigit(s[i+1]) && isDigit(s[i+2])
}

// ibanLengths has each country of the register with its length.
const ibanLengths = "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24FI18FK18FO18FR27GB22GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MN20MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26UA29VA22VG24XK20YE30"

func ibanLength(country string) int {
	for i := 0; i+4 <= len(ibanLengths); i += 4 {
		if ibanLengths[i:i+2] == country {
			return int(ibanLengths[i+2]-'0')*10 + int(ibanLengths[i+3]-'0')
		}
	}
	return 0
}

// iban finds an account number by country, length and ISO 7064 checksum, with or without a blank after each four.
func iban(s string, i int) (span, bool) {
	if i+15 > len(s) || !isUpper(s[i+1]) || !isDigit(s[i+2]) || !isDigit(s[i+3]) {
		return span{}, false
	}
	want := ibanLength(s[i : i+2])
	var buf [34]byte
	chars, end := buf[:0], i
	for j := i; j < len(s) && len(chars) < want; j++ {
		if isDigit(s[j]) || isUpper(s[j]) {
			chars, end = append(chars, s[j]), j+1
		} else if s[j] != ' ' && s[j] != '-' || j != end {
			break
		}
	}
	if want == 0 || len(chars) != want || end < len(s) && isAlnum(s[end]) || !mod97(chars) {
		return span{}, false
	}
	return span{i, end, IBAN}, true
}

func mod97(chars []byte) bool {
	sum := 0
	for i := range chars {
		switch b := chars[(i+4)%len(chars)]; {
		case isDigit(b):
			sum = (sum*10 + int(b-'0')) % 97
		default:
			sum = (sum*100 + int(b-'A') + 10) % 97
		}
	}
	return sum == 1
}

// address finds an IP address that stands by itself. Of versions, times and hex only what parses as one goes.
func address(s string, i, floor int) (span, bool) {
	if i > floor && (s[i-1] == ':' || s[i-1] == '.') {
		return span{}, false
	}
	end := i + run(s[i:], func(b byte) bool { return isHex(b) || b == ':' || b == '.' }, 46)
	for _, try := range []string{s[i:end], strings.TrimRight(s[i:end], ".:"), beforePort(s[i:end])} {
		if len(try) < 3 || i+len(try) < len(s) && isAlnum(s[i+len(try)]) {
			continue
		}
		if _, err := netip.ParseAddr(try); err == nil {
			return span{i, i + len(try), IP}, true
		}
	}
	return span{}, false
}

func beforePort(s string) string {
	host, _, _ := strings.Cut(s, ":")
	return host
}
