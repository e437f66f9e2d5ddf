// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const maxEntry = 1024 // bytes

type kind uint8

const (
	noKind     kind = iota // the zero entry matches nothing
	exactName              // example.com
	belowName              // *.example.com
	everything             // *
	network                // 10.1.2.3, 10.1.0.0/16
)

// Entry is one line of an allow list. The zero value allows nothing.
type Entry struct {
	text    string
	kind    kind
	host    Host
	network netip.Prefix
	port    uint16 // 0: 80 and 443
	anyPort bool
	methods []string // empty: all
	path    Path     // zero: all
}

// ParseEntry reads [METHOD[,METHOD…] ]HOST[:PORT][/PATH]. HOST is a name, *.NAME (all names below it, not
// itself), * (all that is public), an address, or a network as ADDRESS/BITS; IPv6 stands in brackets when a
// port or path follows. Without a port 80 and 443 are meant, :* means all. An entry with methods or a path
// holds for requests that the proxy can read, never for a tunnel. The error is a *Refusal, bad_entry, and
// says what to write instead.
func ParseEntry(unsafeEntry string) (Entry, error) {
	bad := func(what, wayOut string) (Entry, error) {
		return Entry{}, refuse(BadEntry, "allow list entry %.80q: %s; %s", unsafeEntry, what, wayOut)
	}
	if unsafeEntry == "" || len(unsafeEntry) > maxEntry {
		return bad("empty or longer than 1024 bytes", "write a host, for instance example.com")
	}
	if scheme, rest, ok := strings.Cut(unsafeEntry, "://"); ok {
		rest, _, _ = strings.Cut(rest, "/")
		return bad(fmt.Sprintf("URL with scheme %.40q", scheme),
			fmt.Sprintf("write the host, with :PORT unless that is 80 or 443: %.40q", rest))
	}
	e := Entry{text: unsafeEntry}
	methods, place, hasMethods := strings.Cut(unsafeEntry, " ")
	if !hasMethods {
		place = methods
	} else if err := e.setMethods(methods); err != nil {
		return bad(err.Error(), "write methods before the host, as in \"GET,HEAD example.com/pub\"")
	}
	host, port, path := splitPlace(place)
	if err := e.setHost(host); err != nil {
		return bad(err.Error(), "write a name, *.NAME, an address, ADDRESS/BITS, or * for all that is public")
	}
	if err := e.setPort(port); err != nil {
		return bad(err.Error(), "write HOST:443, or HOST:* for all ports but those of databases")
	}
	if err := e.setPath(path); err != nil {
		return bad(err.Error(), "write HOST/prefix, without query, escaped slashes and empty segments")
	}
	return e, nil
}

// Network returns the addresses that the entry names without methods and path. It is the zero Prefix for
// others.
func (e *Entry) Network() netip.Prefix {
	if len(e.methods) > 0 || !e.path.IsZero() {
		return netip.Prefix{}
	}
	return e.network
}

// splitPlace cuts HOST[:PORT][/PATH]. port has its colon, path its slash. What follows a bare address as "/8"
// is the size of a network and part of host.
func splitPlace(place string) (host, port, path string) {
	if strings.HasPrefix(place, "[") {
		end := strings.IndexByte(place, ']') + 1 // 0 if there is none: setHost refuses the lone bracket
		if end == 0 {
			return place, "", ""
		}
		host, place = place[:end], place[end:]
		if bits := leadingBits(place); bits > 0 { // [fd00::]/8
			host, place = host+place[:bits], place[bits:]
		}
	} else if strings.Count(place, ":") > 1 { // fd00::/8, without port or path
		return place, "", ""
	} else {
		end := strings.IndexAny(place, ":/")
		if end < 0 {
			return place, "", ""
		}
		host, place = place[:end], place[end:]
		if _, err := netip.ParseAddr(host); err == nil {
			if bits := leadingBits(place); bits > 0 {
				host, place = host+place[:bits], place[bits:]
			}
		}
	}
	if slash := strings.IndexByte(place, '/'); slash >= 0 {
		return host, place[:slash], place[slash:]
	}
	return host, place, ""
}

// leadingBits is the length of "/" and one to three digits at the start, if the text or a colon ends there.
func leadingBits(s string) int {
	if !strings.HasPrefix(s, "/") {
		return 0
	}
	n := 1
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	if n == 1 || n > 4 || n < len(s) && s[n] != ':' {
		return 0
	}
	return n
}

func (e *Entry) setMethods(unsafeMethods string) error {
	for unsafeMethod := range strings.SplitSeq(unsafeMethods, ",") {
		method, err := ParseMethod(unsafeMethod)
		if err != nil {
			return err
		}
		if method == "CONNECT" {
			return refuse(BadEntry, "CONNECT is how a tunnel is asked for, not a method to allow")
		}
		e.methods = append(e.methods, method)
	}
	return nil
}

func (e *Entry) setHost(unsafeHost string) (err error) {
	if unsafeHost == "*" {
		e.kind = everything
		return nil
	}
	if suffix, ok := strings.CutPrefix(unsafeHost, "*."); ok {
		e.kind = belowName
		e.host, err = ParseHost(suffix)
		return err
	}
	if strings.Contains(unsafeHost, "*") {
		return refuse(BadEntry, "a star stands alone or as the whole first label")
	}
	if strings.ContainsAny(unsafeHost, ":[]/") || endsInNumber(unsafeHost) {
		e.kind = network
		return e.setNetwork(unsafeHost)
	}
	e.kind = exactName
	e.host, err = ParseHost(unsafeHost)
	return err
}

func (e *Entry) setNetwork(unsafeNetwork string) error {
	text := unsafeNetwork
	if inner, ok := strings.CutPrefix(text, "["); ok {
		before, after, found := strings.Cut(inner, "]")
		if !found || strings.Contains(after, "]") || !strings.Contains(before, ":") {
			return refuse(BadEntry, "brackets without an IPv6 address")
		}
		text = before + after
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			if addr, ok := LooseIPv4(text); ok {
				return refuse(BadEntry, "a spelling of the address %v", addr)
			}
			return refuse(BadEntry, "neither name nor address")
		}
		if addr.Zone() != "" {
			return refuse(BadEntry, "address with a zone")
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	switch {
	case prefix.Addr().Is4In6():
		return refuse(BadEntry, "IPv4 in IPv6: the address is %v", prefix.Addr().Unmap())
	case prefix != prefix.Masked():
		return refuse(BadEntry, "bits after the first %d are set: the network is %v", prefix.Bits(), prefix.Masked())
	case prefix.Bits() < 7:
		return refuse(BadEntry, "wider than any private network")
	}
	e.network = prefix
	return nil
}

func (e *Entry) setPort(unsafePort string) error {
	switch unsafePort {
	case "":
		return nil
	case ":*":
		e.anyPort = true
		return nil
	}
	digits, ok := strings.CutPrefix(unsafePort, ":")
	if !ok {
		return refuse(BadEntry, "text between host and port")
	}
	port, err := parsePort(digits)
	if err != nil {
		return err
	}
	if database := databaseAt(port); database != "" {
		return refuse(BadEntry, "port of %s, and agents reach databases through tools only (M-7)", database)
	}
	e.port = port
	return nil
}

func (e *Entry) setPath(unsafePath string) error {
	if unsafePath == "" {
		return nil
	}
	path, err := ParsePath(unsafePath)
	if err != nil {
		return err
	}
	decoded := unescape(path.s)
	if strings.Contains(decoded, "//") || strings.Count(decoded, "/") != strings.Count(path.s, "/") || strings.Contains(decoded, ";") {
		return refuse(BadEntry, "prefix with empty segments, escaped slashes or parameters")
	}
	if ForbiddenRoute(path) {
		return refuse(BadEntry, "a route that is never open to an agent (M-7)")
	}
	e.path = path
	return nil
}

// databaseAt names the database whose registered port this is, empty if it is none. M-7 keeps agents away
// from databases even if a list names one; what a port can't tell (PostgreSQL on 443) stays the operator's
// care.
func databaseAt(port uint16) string {
	for _, d := range databases {
		if slices.Contains(d.ports, port) {
			return d.name
		}
	}
	return ""
}

var databases = [...]struct {
	name  string
	ports []uint16
}{
	{"SQL Server", []uint16{1433, 1434}},
	{"Oracle", []uint16{1521, 2483, 2484}},
	{"etcd", []uint16{2379, 2380}},
	{"MySQL", []uint16{3306, 33060}},
	{"PostgreSQL", []uint16{5432, 6432}},
	{"CouchDB", []uint16{5984}},
	{"Qdrant", []uint16{6333, 6334}},
	{"Redis", []uint16{6379, 6380}},
	{"Neo4j", []uint16{7473, 7474, 7687}},
	{"Cassandra", []uint16{9042, 9142}},
	{"memcached", []uint16{11211}},
	{"CockroachDB", []uint16{26257}},
	{"MongoDB", []uint16{27017, 27018, 27019}},
	{"Db2", []uint16{50000}},
}

// stage is how far an entry goes along with what is asked.
type stage uint8

const (
	otherPlace stage = iota
	otherPort
	hiddenByTunnel
	otherMethod
	otherPath
	allows
)

// compare assumes that the place fits.
func (e *Entry) compare(a *Ask) stage {
	switch port := a.Target.port; {
	case !e.anyPort && e.port != port && (e.port != 0 || port != 80 && port != 443):
		return otherPort
	case a.Method == "" && (len(e.methods) > 0 || !e.path.IsZero()):
		return hiddenByTunnel
	case len(e.methods) > 0 && !slices.Contains(e.methods, a.Method):
		return otherMethod
	case !e.path.IsZero() && !a.Path.within(e.path):
		return otherPath
	}
	return allows
}

// names tells whether a network entry names the address. A network around a metadata service doesn't name
// that: whoever opens link-local addresses rarely means to hand out the machine's credentials.
func (e *Entry) names(addr netip.Addr) bool {
	if e.kind != network || !e.network.Contains(addr) {
		return false
	}
	return e.network.IsSingleIP() || Classify(addr) != Metadata
}
