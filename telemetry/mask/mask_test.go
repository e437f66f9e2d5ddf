// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Tokens are put together here so that no scanner takes this file for a leak.
func TestM18TextTable(t *testing.T) {
	alnum := "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
	hexes := strings.Repeat("0a1b2c3d", 8)
	jwt := "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NSJ9" + ".c2lnbmF0dXJl"
	for _, tt := range []struct{ in, want string }{
		{"key ghp" + "_" + alnum[:36] + " end", "key [masked:api_key] end"},
		{"github" + "_pat_" + alnum, "[masked:api_key]"},
		{"glp" + "at-" + alnum[:20], "[masked:api_key]"},
		{"sk" + "-proj-" + alnum + "_x-y", "[masked:api_key]"},
		{"sk" + "-ant-api03-" + alnum, "[masked:api_key]"},
		{"xo" + "xb-123456789012-" + alnum[:24], "[masked:api_key]"},
		{"AK" + "IAIOSFODNN7EXAMPLE,", "[masked:aws_key],"},
		{"AI" + "za" + alnum[:35], "[masked:api_key]"},
		{"sk_" + "live_" + alnum[:24], "[masked:api_key]"},
		{"hf" + "_" + alnum[:34], "[masked:api_key]"},
		{"PRIVATE" + "+KEY+agentrun+" + hexes[:8] + "+AX" + alnum, "[masked:api_key]"},
		{"bot123456789" + ":AA" + alnum[:33], "bot[masked:api_key]"},
		{"got " + jwt + ".", "got [masked:jwt]"},
		{"Authorization: Bearer abc", "Authorization: [masked:authorization]"},
		{`-H "authorization: Basic dTpw" -v`, `-H "authorization: [masked:authorization]" -v`},
		{"use bearer 0123456789abc now", "use bearer [masked:authorization] now"},
		{"Cookie: a=b; c=d\nHost: x", "Cookie: [masked:cookie]\nHost: x"},
		{`{"set-cookie":"sid=1; Path=/"}`, `{"set-cookie":"[masked:cookie]"}`},
		{"postgres://bob:s3cr/t@db.example/x", "postgres://bob:[masked:password]@db.example/x"},
		{"https://" + alnum[:30] + "@host.example/", "https://[masked:secret]@host.example/"},
		{"password=hunter2 user=bob", "password=[masked:password] user=bob"},
		{"DB_PASSWORD: \"a \\\" b\", x", "DB_PASSWORD: \"[masked:password]\", x"},
		{"?api_key=abc&user=5", "?api_key=[masked:secret]&user=5"},
		{"password=a&b,c;d user", "password=[masked:password] user"},
		{`{\"client_secret\":\"x y\",\"n\":1}`, `{\"client_secret\":\"[masked:secret]\",\"n\":1}`},
		{"'token' => 'abc'", "'token' => '[masked:secret]'"},
		{"cmd --password hunter2 --port 5", "cmd --password [masked:password] --port 5"},
		{"cmd --api-key=hunter2", "cmd --api-key=[masked:secret]"},
		{"token := \"abc\"", "token := \"[masked:secret]\""},
		{"mail Bob <bob.b+x@mail.example.com>.", "mail Bob <[masked:email]>."},
		{"to=müller@exämple.de", "to=[masked:email]"},
		{"call +49 30 901820 or +1 (555) 234-5678!", "call [masked:phone] or [masked:phone]!"},
		{"0049 30 901820", "[masked:phone]"},
		{"(555) 234-5678, 555-234-5678", "[masked:phone], [masked:phone]"},
		{"IBAN DE89 3704 0044 0532 0130 00.", "IBAN [masked:iban]."},
		{"GB82WEST12345698765432", "[masked:iban]"},
		{"card 4111 1111 1111 1111 ok", "card [masked:card] ok"},
		{"378282246310005", "[masked:card]"},
		{"-----BEGIN OPENSSH PRIVATE" + " KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\nx", "[masked:private_key]\nx"},
		{"-----BEGIN PRIVATE" + " KEY-----\\nabc", "[masked:private_key]"},
		{"password=[masked:password]x", "password=[masked:password]"},
	} {
		if diff := cmp.Diff(tt.want, Text(tt.in)); diff != "" {
			t.Errorf("Text(%q) (-want +got):\n%s", tt.in, diff)
		}
	}
}

// What identifies things, and what people write, must survive: logs that say nothing aren't read.
func TestM18StaysAsItIs(t *testing.T) {
	sum := sha256.Sum256([]byte("x"))
	for _, s := range []string{
		"commit da39a3ee5e6b4b0d3255bfef95601890afd80709", hex.EncodeToString(sum[:]),
		"sha256:" + hex.EncodeToString(sum[:]), "h1:Lt0zQ9jmbCVBbTyuLpS1HVgTCHL2wP9fTuOzTIBjCKc=",
		"f47ac10b-58cc-4372-a567-0e02b2c3d479", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "did:example:a1", "session-42_x",
		`{"chain":"node","data":{"agent_id":"did:example:a1","eff_score":0.75},"hash":"` + hex.EncodeToString(sum[:]) + `","seq":7,"time":"2026-11-21T07:02:51.012345670Z"}`,
		"2026-11-21T07:02:51+01:00 took 17ms, 1763708571012345678 ns, ratio 0.4111111111111111",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"max_tokens: 4096, tokens=312, token_count=12", "if token == nil { return x.token }", "token := lexer.Next()",
		"password: str, api_key: string", "password: ${DB_PASSWORD} $TOKEN", "API_TOKEN=$API_TOKEN", "--token <token>",
		"The risk-assessment-of-the-whole-programme1 is done.", "the bearer of this letter", "Basic authentication is off",
		"git@github.com:org/repo.git", "https://host.example:8443/a/b?q=1", "http://[2001:db8::1]:80/ 192.0.2.1",
		"react@18.2.0 and @scope/pkg@latest", "import \"golang.org/x/mod@v0.42.0\"", "for i := 0; i < 10; i++ { a[i] = b }",
		"000001.jsonl 0000000000000000", "v1.2.3-rc.1+build.5", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
		"4111 1111 1111 1112", "GB82 WEST 1234 5698 7654 33", "sk-learn-pipelines-and-friends", "secret", "password:", "token=",
		`{"password":null,"token":true}`, "[masked:email] [masked:known]", "déjà vu, 東京, 🙂", "a+b=c; x@y",
	} {
		if got := Text(s); got != s {
			t.Errorf("Text(%q) = %q, want it unchanged", s, got)
		}
	}
}

func TestM18IPsOnlyIfAsked(t *testing.T) {
	m := New(Options{IPs: true})
	for in, want := range map[string]string{
		"to 192.0.2.17:443.":            "to [masked:ip]:443.",
		"[2001:db8::1]:80":              "[[masked:ip]]:80",
		"::1 fe80::1":                   "[masked:ip] [masked:ip]",
		"at 07:02:51, v1.2.3, face:off": "at 07:02:51, v1.2.3, face:off",
		"f47ac10b-58cc-4372":            "f47ac10b-58cc-4372",
	} {
		if got := m.Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestM18KnownSecretsInAllTheirForms(t *testing.T) {
	m := New(Options{Known: []string{`a"b/c d&e`, "short"}})
	for _, s := range []string{`xa"b/c d&ex`, `a\"b/c d\u0026e`, "a%22b%2Fc+d%26e", "YSJiL2MgZCZl"} {
		if got := m.Text(s); !strings.Contains(got, Known.Mark()) || strings.Contains(got, "c d") {
			t.Errorf("Text(%q) = %q", s, got)
		}
	}
	if got := m.Text("short"); got != "short" {
		t.Errorf("a secret below MinKnown was taken: %q", got)
	}
}

func TestM18JSON(t *testing.T) {
	got, err := JSON([]byte(`{"a@b.example": 1, "n":1.50, "password":"x", "credentials":{"user":"u","n":[1,null]},
		"card": 4111111111111111, "text":"Bearer 0123456789abc", "token":true, "html":"<&>"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"[masked:email]":1,"n":1.50,"password":"[masked:password]","credentials":{"user":"[masked:secret]","n":["[masked:secret]",null]},` +
		`"card":"[masked:card]","text":"Bearer [masked:authorization]","token":true,"html":"<&>"}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, bad := range []string{"", "{", `{"a":1} 2`, `{"a":}`, "nul", strings.Repeat("[", 100) + strings.Repeat("]", 100), `"hunter2`} {
		got, err := JSON([]byte(bad))
		if !errors.Is(err, ErrJSON) || got != nil {
			t.Errorf("JSON(%.20q) = %q, %v", bad, got, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has the input: %v", err)
		}
	}
}

// generators makes a secret of each kind and the text it stands in; %s is the secret.
func generators() map[string]func(t *rapid.T) (secret, text string) {
	from := func(t *rapid.T, chars string, lo, hi int) string {
		return rapid.StringOfN(rapid.RuneFrom([]rune(chars)), lo, hi, -1).Draw(t, "chars")
	}
	const digit, upper, lower = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
	alnum := digit + upper + lower
	plain := func(s string) (string, string) { return s, s }
	return map[string]func(t *rapid.T) (string, string){
		"token": func(t *rapid.T) (string, string) {
			var fixed []tokenRule
			for _, r := range builtin() {
				if r.max == 0 && !r.mixed {
					fixed = append(fixed, r)
				}
			}
			r := rapid.SampledFrom(fixed).Draw(t, "rule")
			var in []rune
			for b := range 128 {
				if r.body(byte(b)) {
					in = append(in, rune(b))
				}
			}
			return plain(r.prefix + rapid.StringOfN(rapid.RuneFrom(in), r.min, r.min+40, -1).Draw(t, "body"))
		},
		"aws": func(t *rapid.T) (string, string) { return plain("AKIA" + from(t, upper+"234567", 16, 16)) },
		"openai": func(t *rapid.T) (string, string) {
			return plain("sk-" + from(t, alnum, 20, 20) + "7" + from(t, alnum+"-_", 0, 99))
		},
		"jwt": func(t *rapid.T) (string, string) {
			return plain("eyJ" + from(t, alnum+"-_", 10, 40) + "." + from(t, alnum+"-_", 10, 99) + "." + from(t, alnum+"-_", 0, 50))
		},
		"bearer": func(t *rapid.T) (string, string) {
			s := from(t, alnum+"-._~+/", 24, 60)
			return s, "Bearer " + s
		},
		"header": func(t *rapid.T) (string, string) {
			s := from(t, alnum+" ;=,/", 9, 60)
			s = "x" + s + "x"
			return s, rapid.SampledFrom([]string{"Authorization: ", "Cookie: ", "Set-Cookie:", "proxy-authorization: "}).Draw(t, "name") + s
		},
		"pem": func(t *rapid.T) (string, string) {
			s := from(t, alnum+"+/\n", 40, 400)
			return s, "-----BEGIN RSA PRIVATE" + " KEY-----\n" + s + "\n-----END RSA PRIVATE KEY-----"
		},
		"url": func(t *rapid.T) (string, string) {
			s := from(t, alnum+"!$*()+._~-%@", 8, 40)
			return s, "https://user:" + s + "@host.example/path"
		},
		"keyvalue": func(t *rapid.T) (string, string) {
			s := "Z9" + from(t, alnum+"!$*()+._~-%@&,;}]", 8, 40) + "9Z"
			sep := rapid.SampledFrom([]string{"=", ": ", ":", " = "}).Draw(t, "sep")
			return s, rapid.SampledFrom([]string{"password", "DB_PASSWD", "x-api-key", "client.secret", "Token"}).Draw(t, "name") + sep + s
		},
		"quoted": func(t *rapid.T) (string, string) {
			s := "Z9" + rapid.StringN(6, 30, -1).Draw(t, "s") + "9Z"
			b, _ := json.Marshal(s)
			return string(b[1 : len(b)-1]), `{"password":` + string(b) + `}`
		},
		"email": func(t *rapid.T) (string, string) {
			return plain(from(t, lower, 1, 1) + from(t, alnum+"._+-", 4, 20) + "x@" + from(t, lower, 1, 10) + "." + from(t, lower, 2, 6))
		},
		"phone": func(t *rapid.T) (string, string) {
			return plain("+" + from(t, "123456789", 1, 1) + from(t, digit, 8, 13))
		},
		"iban": func(t *rapid.T) (string, string) {
			body := from(t, digit, 18, 18)
			for check := 2; check < 99; check++ {
				s := fmt.Sprintf("DE%02d%s", check, body)
				if mod97([]byte(s)) {
					return plain(s)
				}
			}
			panic("no check digits")
		},
		"card": func(t *rapid.T) (string, string) {
			s := rapid.SampledFrom([]string{"4", "51", "2221", "6011", "35"}).Draw(t, "iin")
			s += from(t, digit, 15-len(s), 15-len(s))
			for c := range 10 {
				if d := fmt.Sprint(s, c); luhn([]byte(d)) {
					return plain(d)
				}
			}
			panic("no check digit")
		},
	}
}

// around is text that doesn't go on a secret.
var around = []string{"", " ", "\n", "x y ", "\"", "(", ", ", "<a>", "déjà ", "[masked:email]", " 12 ", "\\n", "\t"}

func TestM18NoSecretStays(t *testing.T) {
	for name, gen := range generators() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				secret, text := gen(t)
				before := rapid.SampledFrom(around).Draw(t, "before")
				after := rapid.SampledFrom([]string{"", " ", "\n", "\"", ", x", "\\n", " end"}).Draw(t, "after")
				in := before + text + after
				got := Text(in)
				if strings.Contains(got, secret) || !strings.Contains(got, markOpen) {
					t.Fatalf("Text(%q) = %q", in, got)
				}
				if again := Text(got); again != got {
					t.Fatalf("not idempotent: %q, then %q", got, again)
				}
			})
		})
	}
}

func TestM18Idempotent(t *testing.T) {
	var gens []func(*rapid.T) (string, string)
	for _, g := range generators() {
		gens = append(gens, g)
	}
	m := New(Options{IPs: true, Known: []string{"masked:email]", "[masked", "]]]]]]"}})
	rapid.Check(t, func(t *rapid.T) {
		var s strings.Builder
		for range rapid.IntRange(1, 6).Draw(t, "n") {
			if rapid.Bool().Draw(t, "secret") {
				_, text := gens[rapid.IntRange(0, len(gens)-1).Draw(t, "g")](t)
				s.WriteString(text[:rapid.IntRange(0, len(text)).Draw(t, "cut")])
			}
			s.WriteString(rapid.SampledFrom(append(around, "-", "@", "=", ":", "token=", "4111-1111-1111-1111-", "555-234-5678", "[masked:", "::1", "://")).Draw(t, "glue"))
		}
		for _, m := range []*Masker{nil, m} {
			once := m.Text(s.String())
			if twice := m.Text(once); twice != once {
				t.Fatalf("%q: %q, then %q", s.String(), once, twice)
			}
		}
	})
}

// However the bytes are cut into writes, what comes out is what comes out of one write.
func TestM18WriterFindsWhatIsSplit(t *testing.T) {
	all := generators()
	var names []string
	for n := range all {
		names = append(names, n)
	}
	rapid.Check(t, func(t *rapid.T) {
		secret, text := all[rapid.SampledFrom(names).Draw(t, "kind")](t)
		in := []byte("first line\nx " + text + " y\nlast line without end")
		var whole, cut bytes.Buffer
		w := (*Masker)(nil).Writer(&whole, 0)
		_, _ = w.Write(in)
		_ = w.Close()
		c := (*Masker)(nil).Writer(&cut, 0)
		for rest := in; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if got, err := c.Write(rest[:n]); got != n || err != nil {
				t.Fatal(got, err)
			}
			rest = rest[n:]
		}
		_ = c.Close()
		if diff := cmp.Diff(whole.String(), cut.String()); diff != "" {
			t.Fatalf("-whole +cut:\n%s", diff)
		}
		if strings.Contains(cut.String(), secret) {
			t.Fatalf("%q stays: %q", secret, cut.String())
		}
		if !strings.HasPrefix(cut.String(), "first line\n") || !strings.HasSuffix(cut.String(), "last line without end") {
			t.Fatalf("harmless lines changed: %q", cut.String())
		}
	})
}

func TestM18WriterCutsLongLines(t *testing.T) {
	key := "ghp" + "_" + strings.Repeat("a1", 18)
	for shift := range 60 {
		var out bytes.Buffer
		w := (*Masker)(nil).Writer(&out, 8<<10)
		fmt.Fprintf(w, "%s %s %s\nnext\n", strings.Repeat("x ", 4<<9)+strings.Repeat("y", (4<<10)-30+shift), key, strings.Repeat("z", 9000))
		_ = w.Close()
		if strings.Contains(out.String(), "ghp_a1") || !strings.HasSuffix(out.String(), " bytes]\nnext\n") || out.Len() > 9<<10 {
			t.Fatalf("shift %d: %d bytes, end %q", shift, out.Len(), out.String()[max(0, out.Len()-80):])
		}
	}
}

func TestM18WriterKeyWithoutEndIsBounded(t *testing.T) {
	var out bytes.Buffer
	w := (*Masker)(nil).Writer(&out, 0)
	fmt.Fprintf(w, "-----BEGIN PRIVATE"+" KEY-----\n%send\n", strings.Repeat("0123456789abcdef\n", 3000))
	_ = w.Close()
	if !strings.HasSuffix(out.String(), "end\n") || strings.Count(out.String(), "\n") > 3000-maxKey/17+2 {
		t.Errorf("%d lines stay, the last is %q", strings.Count(out.String(), "\n"), out.String()[max(0, out.Len()-20):])
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestM18WriterKeepsItsError(t *testing.T) {
	w := (*Masker)(nil).Writer(failing{}, 0)
	if _, err := w.Write([]byte("a\n")); err == nil {
		t.Error("no error")
	}
	if err := w.Close(); err == nil {
		t.Error("Close forgot the error")
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"password=\"a\\\"b\" x", "://u:p@h @b.cc", "token={token={", "eyJhbGciOiJIUzI1NiJ9.eyJhbGciOiJIUzI1NiJ9.", "4111-1111-1111-1111-555-234-5678",
		"Cookie: [masked:cookie]\\n", "-----BEGIN RSA PRIVATE" + " KEY-----", "+49 30 901820", "00491234 5678", "[masked:[masked:ip]]", "--token --token x"} {
		f.Add(s)
	}
	m := New(Options{IPs: true, Known: []string{"masked:", "known-secret"}})
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range []*Masker{nil, m} {
			once := m.Text(s)
			if twice := m.Text(once); twice != once {
				t.Errorf("%q: %q, then %q", s, once, twice)
			}
			if once == Unstable.Mark() && s != once {
				t.Logf("unstable: %q", s)
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"password":{"a":[1,"x",null]},"a@b.cc":4111111111111111}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := JSON(raw)
		if (got == nil) == (err == nil) {
			t.Fatalf("%q, %v: want exactly one", got, err)
		}
		if err != nil {
			return
		}
		again, err := JSON(got)
		if err != nil || !bytes.Equal(got, again) {
			t.Errorf("%q: %q, then %q, %v", raw, got, again, err)
		}
	})
}

func FuzzWriter(f *testing.F) {
	f.Add([]byte("password=x\n-----BEGIN PRIVATE"+" KEY-----\na\n-----END PRIVATE KEY-----\nb"), uint8(3))
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		var whole, cut bytes.Buffer
		w, c := (*Masker)(nil).Writer(&whole, 0), (*Masker)(nil).Writer(&cut, 0)
		_, _ = w.Write(in)
		for rest := in; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			_, _ = c.Write(rest[:n])
			rest = rest[n:]
		}
		_, _ = w.Close(), c.Close()
		if !bytes.Equal(whole.Bytes(), cut.Bytes()) {
			t.Errorf("%q in steps of %d: %q, want %q", in, step, cut.Bytes(), whole.Bytes())
		}
	})
}

func BenchmarkText(b *testing.B) {
	line := `{"time":"2026-11-21T07:02:51.012345Z","level":"INFO","msg":"call finished","tool":"search","agent":"did:example:a1","duration_ms":17,"digest":"da39a3ee5e6b4b0d3255bfef95601890afd80709"}` + "\n"
	secret := strings.Replace(line, `"msg":`, `"api_key":"abcdef","msg":`, 1)
	prose := "Whoever reads a log wants to know what happened, and to whom, and not what was said. The rest is noise.\n"
	for _, c := range []struct{ name, text string }{
		{"log", strings.Repeat(line, 50)}, {"one-secret-per-line", strings.Repeat(secret, 50)}, {"prose", strings.Repeat(prose, 100)}, {"one-line", line},
		{"hostile/at", strings.Repeat("a@", 5000)}, {"hostile/jwt", strings.Repeat("-eyJ", 2500)}, {"hostile/scheme", strings.Repeat("://", 3333)},
		{"hostile/brace", strings.Repeat("token={", 1500)}, {"hostile/digits", strings.Repeat("1-", 5000)}, {"hostile/quote", strings.Repeat(`pwd='\`, 1600)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			for b.Loop() {
				Text(c.text)
			}
		})
	}
}
