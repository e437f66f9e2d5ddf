// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
	"agentrun/test/exit"
)

// A-H2: a server that serves several names from one address and asks for a second hello (HelloRetryRequest) reads no other name
// in it than the one that was decided about, by every way out, also when the second hello comes before the question.
func TestM8SecondHelloFromInside(t *testing.T) {
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "python3")
	x := newExit(t)
	server := &exittest.Retrying{Answers: [][]byte{exittest.Record(22, exittest.ServerHello(true)), exittest.Record(22, exittest.ServerHello(false))}}
	if _, err := x.w.Raw("many.test", server.Serve); err != nil {
		t.Fatal(err)
	}
	hello := func(name string, more ...[]byte) string {
		return string(exittest.Record(22, exittest.ClientHello(name, more...)))
	}
	first := hello("many.test")
	changed := string(exittest.Record(20, []byte{1}))
	ways := []struct {
		name, to string
		before   []string
	}{
		{"CONNECT", proxyAt, []string{"CONNECT many.test:443 HTTP/1.1\r\nHost: many.test:443\r\n\r\n"}},
		{"SOCKS", proxyAt, []string{"\x05\x01\x00", "\x05\x01\x00\x03\x09many.test\x01\xbb"}},
		{"capture", "many.test:443", nil},
	}
	attacks := []struct {
		name string
		send []string
	}{
		{"another name", []string{first, hello("other.test")}},
		{"another name after a ChangeCipherSpec", []string{first, changed + hello("third.test")}},
		{"no name", []string{first, hello("")}},
		{"hidden", []string{first, hello("many.test", exittest.ECH())}},
		{"at once", []string{first + hello("fourth.test")}},
	}
	var tries []exchange
	for _, way := range ways {
		for _, a := range attacks {
			tries = append(tries, exchange{Name: way.name + ", " + a.name, To: way.to, Send: append(slices.Clone(way.before), a.send...)})
		}
	}
	_, r := x.raw(x.opts("ring2", "--allow", "many.test"), tries...)
	r.want(t, 0, "exited")
	want := slices.Repeat([]string{"many.test"}, len(tries))
	if got := server.Names(); !slices.Equal(got, want) {
		t.Errorf("the server has read the names %q, want many.test once for each of %d tries", got, len(tries))
	}
	refused := 0
	for _, e := range calls(x.n.audit("node"), "egress") {
		if d := fmt.Sprint(e.Data); strings.Contains(d, "name_mismatch") || strings.Contains(d, "hidden_name") {
			count, _ := e.Data["count"].(float64)
			refused += max(int(count), 1)
		}
	}
	if refused != len(tries) {
		t.Errorf("%d refusals on record, want %d", refused, len(tries))
	}

	// The same name passes, as clients send it.
	tries = tries[:0]
	for _, way := range ways {
		tries = append(tries, exchange{Name: way.name, To: way.to, Send: append(slices.Clone(way.before), first, changed+first)})
	}
	got, r := x.raw(x.opts("ring2", "--allow", "many.test"), tries...)
	r.want(t, 0, "exited")
	for name, a := range got {
		if !strings.HasSuffix(a.Reply, string(server.Answers[1])) {
			t.Errorf("%s: got %q %s, want the server's second answer", name, a.Reply, a.Error)
		}
	}
	if n := len(server.Names()) - len(want); n != 2*len(tries) {
		t.Errorf("%d hellos of clients that behave, want %d", n, 2*len(tries))
	}
}
