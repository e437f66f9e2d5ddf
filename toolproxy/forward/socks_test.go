// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"io"
	"testing"

	"agentrun/rings"
)

func socksTo(host string, port uint16) []byte {
	b := append([]byte{5, 1, 0, 3, byte(len(host))}, host...)
	return append(b, byte(port>>8), byte(port))
}

func TestM8Socks(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example:22"))
	w.echo(t, 22)
	for name, c := range map[string]struct {
		request []byte
		want    byte
	}{
		"allowed":           {socksTo("allowed.example", 22), 0},
		"spelled otherwise": {socksTo("ALLOWED.example.", 22), 0},
		"unlisted":          {socksTo("evil.example", 22), 2},
		"other port":        {socksTo("allowed.example", 23), 2},
		"metadata":          {[]byte{5, 1, 0, 1, 169, 254, 169, 254, 0, 80}, 2},
		"metadata in text":  {socksTo("169.254.169.254", 80), 2},
		"decimal":           {socksTo("2852039166", 80), 2},
		"mapped metadata":   {[]byte{5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 169, 254, 169, 254, 0, 80}, 2},
		"NUL":               {socksTo("allowed.example\x00.evil.example", 22), 2},
		"CRLF":              {socksTo("allowed.example\r\n", 22), 2},
		"BIND":              {[]byte{5, 2, 0, 1, 1, 1, 1, 1, 0, 80}, 7},
		"UDP":               {[]byte{5, 3, 0, 1, 1, 1, 1, 1, 0, 80}, 7},
		"address type":      {[]byte{5, 1, 0, 9, 1, 1, 1, 1, 0, 80}, 8},
		"reserved":          {[]byte{5, 1, 1, 1, 1, 1, 1, 1, 0, 80}, 1},
		"port 0":            {socksTo("allowed.example", 0), 2},
	} {
		conn := w.dialProxy(t)
		if _, err := conn.Write(append([]byte{5, 2, 2, 0}, c.request...)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 12)
		if _, err := io.ReadFull(conn, got); err != nil || got[1] != 0 || got[3] != c.want {
			t.Errorf("%s: got % x, %v, want reply %d", name, got, err, c.want)
			continue
		}
		if c.want != 0 {
			continue
		}
		if _, err := io.WriteString(conn, "ping"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, got[:4]); err != nil || string(got[:4]) != "ping" {
			t.Errorf("%s: got %q, %v", name, got[:4], err)
		}
	}
	conn := w.dialProxy(t)
	if _, err := conn.Write([]byte{5, 1, 2}); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "\x05\xff" {
		t.Errorf("password only: got % x, %v", got, err)
	}
}

func FuzzSocks(f *testing.F) {
	f.Add(socksTo("allowed.example", 443))
	f.Add([]byte{5, 1, 0, 1, 127, 0, 0, 1, 0, 80})
	f.Add([]byte{5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80})
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		r, need, reply, err := parseSocks(unsafe)
		outcomes := 0
		for _, is := range []bool{!r.target.IsZero(), need > 0, reply != 0} {
			if is {
				outcomes++
			}
		}
		if outcomes != 1 || err != nil && reply == 0 || need > 0 && need <= len(unsafe) || r.size > len(unsafe) {
			t.Fatalf("%x: %+v, %d, %d, %v", unsafe, r, need, reply, err)
		}
		if !r.target.IsZero() {
			if again, _, _, _ := parseSocks(unsafe[:r.size]); again != r {
				t.Fatalf("%x: %+v, alone %+v", unsafe, r, again)
			}
		}
	})
}
