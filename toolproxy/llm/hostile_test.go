// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// A provider's word about what it used is taken within what its bytes make plausible, and only of the whole reply.
func TestM19UsageBlocksThatLie(t *testing.T) {
	text := strings.Repeat("word ", 600) // 3000 bytes: 1000 tokens by our estimate, 23 at least
	usage := func(prompt, completion any) string {
		return fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%v,"completion_tokens":%v,"total_tokens":1}}`, prompt, completion)
	}
	for _, tt := range []struct {
		name     string
		chunks   []string
		estimate bool
		tokens   int64 // booked for the reply; 0: the estimate of 1000
	}{
		{"plausible", []string{content(text), usage(50, 700), stop}, false, 700},
		{"several, the last counts", []string{content(text), usage(50, 300), usage(50, 700), stop}, false, 700},
		{"a second one that takes back", []string{content(text), usage(50, 700), usage(50, 0), stop}, true, 0},
		{"before the content", []string{usage(50, 30), content(text), stop}, true, 0},
		{"in the middle, and never again", []string{content(text[:150]), usage(50, 30), content(text[150:]), stop}, true, 0},
		{"with each piece", []string{
			`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":50,"completion_tokens":1}}`,
			`{"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":50,"completion_tokens":2}}`, stop,
		}, false, 2},
		{"none", []string{content(text), stop}, true, 0},
		{"too little", []string{content(text), usage(50, 22), stop}, true, 0},
		{"too much", []string{content(text), usage(50, 3025), stop}, true, 0}, // twice max_tokens and some
		{"negative", []string{content(text), usage(-1, -1), stop}, true, 0},
		{"no integer", []string{content(text), usage(50.5, 700), stop}, true, 0},
		{"an exponent", []string{content(text), usage("5e1", "7e2"), stop}, true, 0},
		{"beyond int64", []string{content(text), usage("99999999999999999999", 700), stop}, true, 0},
		{"text", []string{content(text), usage(`"50"`, `"700"`), stop}, true, 0},
		{"a list", []string{content(text), `{"choices":[],"usage":[50,700]}`, stop}, true, 0},
		{"fields of caches change nothing", []string{
			content(text), `{"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":700,"prompt_tokens_details":{"cached_tokens":999999},"cache_read_input_tokens":-5}}`, stop,
		}, false, 700},
		{"null takes nothing back", []string{content(text), usage(50, 700), `{"choices":[],"usage":null}`, stop}, false, 700},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, "public", events(append(tt.chunks, "[DONE]")...), "  idle_timeout: 30s\n")
			code, body := r.post(t, "/v1/chat/completions", ask("m", "x", ""))
			if code != http.StatusOK {
				t.Fatalf("got %d %s", code, body)
			}
			o := r.done(t)[0]
			if got := slices.Contains(o.Flags, "usage_estimated"); got != tt.estimate {
				t.Errorf("estimated: got %v, want %v", got, tt.estimate)
			}
			prompt := int64(50)
			if tt.estimate {
				sent := <-r.body
				prompt = tokensOf(len(sent))
			}
			want := tt.tokens
			if want == 0 {
				want = tokensOf(len(text))
			}
			if o.Tokens != prompt+want || o.Cost != o.Tokens {
				t.Errorf("booked %d tokens for %d, want %d", o.Tokens, o.Cost, prompt+want)
			}
		})
	}
}

// A long prompt costs something, whatever a provider says.
func TestM19PromptsAreNotFree(t *testing.T) {
	for said, want := range map[int64]bool{1: false, 200: false, 800: true, 33_000: true, 200_000: false} {
		if got := plausibleInput(said, 100_000, 0); got != want {
			t.Errorf("%d tokens for 100000 bytes: plausible %v, want %v", said, got, want)
		}
	}
}

// Replies that are made to take memory or time end as errors, and the gateway stays as small as it was.
func TestM19RepliesMadeToSwell(t *testing.T) {
	sse := func(write func(w http.ResponseWriter, req *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			write(w, req)
		}
	}
	whole := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		}
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 {
		_, _ = z.Write(bytes.Repeat([]byte("data: x\n\n"), 100_000))
	}
	z.Close()
	for _, tt := range []struct {
		name string
		up   http.HandlerFunc
		code string // empty: an answer
	}{
		{"choices that say nothing", whole(`{"choices":[` + strings.Repeat("{},", 2<<20) + `{}]}`), "tool_failed"},
		{"calls that say nothing", whole(`{"choices":[{"message":{"tool_calls":[` + strings.Repeat("{},", 2<<20) + `{}]}}]}`), "tool_failed"},
		{"parts that say nothing", whole(`{"choices":[{"message":{"content":[` + strings.Repeat("{},", 2<<20) + `{}]}}]}`), "tool_failed"},
		{"nested lists", whole(`{"choices":` + strings.Repeat("[", 4<<20) + `}`), "tool_failed"},
		{"usage of usage", whole(`{"choices":[],"usage":` + strings.Repeat(`{"prompt_tokens":`, 100_000) + strings.Repeat("}", 100_000) + `}`), "tool_failed"},
		{"too much JSON", whole(`{"choices":[],"x":"` + strings.Repeat("x", 9<<20) + `"}`), "too_large"},
		{"pieces of a call without end", sse(func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				if _, err := fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"x\"}}]}}]}\n\n"); err != nil {
					return
				}
			}
		}), "too_large"},
		{"events that say nothing", sse(func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				if _, err := fmt.Fprint(w, "data: {}\n\n"); err != nil {
					return
				}
			}
		}), "too_large"},
		{"an event of many lines", sse(func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				if _, err := fmt.Fprintln(w, "data: "+strings.Repeat(" ", 1000)); err != nil {
					return
				}
			}
		}), "too_large"},
		{"no newline ever", sse(func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				if _, err := fmt.Fprint(w, strings.Repeat("x", 1000)); err != nil {
					return
				}
			}
		}), "too_large"},
		{"a head without end", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 5000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1000))
			}
		}, "tool_failed"},
		{"compressed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, "tool_failed"},
		{"another content type", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-ndjson")
			fmt.Fprint(w, content("x"))
		}, "tool_failed"},
		{"a letter in two events", events(`{"choices":[{"delta":{"content":"\ud83d"}}]}`, `{"choices":[{"delta":{"content":"\ude00"}}]}`, stop), "tool_failed"},
		{"half a letter", sse(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"\xf0\x9f\"}}]}\n\n")
		}), "tool_failed"},
		{"cut in the middle of the usage", sse(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "data: "+content("half")+"\n\ndata: "+`{"choices":[],"usage":{"prompt_tok`)
		}), "tool_failed"},
		{"a letter whose bytes come one by one", sse(func(w http.ResponseWriter, _ *http.Request) {
			for _, b := range []byte("data: " + content("😀") + "\n\ndata: " + stop + "\n\ndata: [DONE]\n\n") {
				_, _ = w.Write([]byte{b})
				w.(http.Flusher).Flush()
			}
		}), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, "public", tt.up, "  idle_timeout: 30s\n")
			r.limit = time.Minute // swelling takes what the machine has
			goruntime.GC()
			var before, now goruntime.MemStats
			goruntime.ReadMemStats(&before)
			most, stopped := uint64(0), make(chan struct{})
			watched := make(chan struct{})
			go func() {
				defer close(watched)
				for {
					goruntime.ReadMemStats(&now)
					most = max(most, now.HeapAlloc)
					select {
					case <-stopped:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			}()
			code, body := r.post(t, "/v1/chat/completions", ask("m", "x", ""))
			close(stopped)
			<-watched
			if tt.code == "" {
				if code != http.StatusOK || !strings.Contains(body, "😀") {
					t.Errorf("got %d %s", code, body)
				}
			} else if errorCode(body) != tt.code {
				t.Errorf("got %d %.300s, want %s", code, body, tt.code)
			}
			// The test's own provider writes up to 9 MiB of it.
			if grown := int64(most) - int64(before.HeapAlloc); grown > 160<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			o := r.done(t)[0]
			if o.Cost < 0 || o.Cost > 10_000 { // 1000 tokens at most, of 1 each, twice and some, and the prompt
				t.Errorf("booked %+v", o)
			}
		})
	}
}

// An agent's own request is read with the same bound: lists of nothing would make ten gigabytes of the bodies that are held at once.
func TestM13RequestsMadeToSwell(t *testing.T) {
	for name, body := range map[string]string{
		"messages": `{"messages":[` + strings.Repeat("{},", 300_000) + `{}]}`,
		"tools":    `{"messages":[{"role":"user","content":"x"}],"tools":[` + strings.Repeat("{},", 300_000) + `{}]}`,
		"calls":    `{"messages":[{"role":"assistant","tool_calls":[` + strings.Repeat("{},", 300_000) + `{}]}]}`,
		"parts":    `{"messages":[{"role":"user","content":[` + strings.Repeat("{},", 300_000) + `{}]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, "public", nil, "")
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			code, answer := r.post(t, "/v1/chat/completions", body)
			goruntime.ReadMemStats(&after)
			if code != http.StatusRequestEntityTooLarge && code != http.StatusBadRequest {
				t.Errorf("got %d %.200s", code, answer)
			}
			if total := after.TotalAlloc - before.TotalAlloc; total > 24<<20 {
				t.Errorf("%d MiB were allocated for a body of 1", total>>20)
			}
		})
	}
}

// FuzzReply: whatever a provider sends as a stream, what is booked is what its bytes make plausible, and the reply ends.
func FuzzReply(f *testing.F) {
	f.Add([]byte("data: " + content("x") + "\n\ndata: " + usageLine + "\n\ndata: " + stop + "\n\ndata: [DONE]\n\n"))
	f.Add([]byte(`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{"}}]}}],"usage":{"prompt_tokens":-1}}` + "\n\n"))
	f.Add([]byte(`data: {"choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"thinking"}],"reasoning":"b"}}]}` + "\n\n"))
	config, err := ParseConfig(nil)
	if err != nil {
		f.Fatal(err)
	}
	g, err := New(Options{Config: config, Entrance: &entrance{}})
	if err != nil {
		f.Fatal(err)
	}
	to := &Model{Name: "m", Input: perMillion, Output: perMillion, MaxTokens: 100}
	f.Fuzz(func(t *testing.T, in []byte) {
		permit, e := (&entrance{limit: time.Minute}).Enter(t.Context(), gate.Call{})
		if e != nil {
			t.Fatal(e)
		}
		defer permit.End(gate.Outcome{})
		c := newCall(g, &target{model: to, provider: &Provider{Timeout: mostTime}}, permit, 300, 100, time.Minute)
		defer c.cancel(nil)
		out := &wholeSink{reply: telemetry.NewPlaintext(&wholeReply{})}
		failed := c.pump(sseOf(in, &c.received), out)
		u := c.bill()
		if u.Prompt < 1 || u.Prompt > 300+4096 || u.Completion < int64(c.outBytes)/128 || u.Total != u.Prompt+u.Completion {
			t.Fatalf("%q: booked %+v for %d bytes", in, u, c.outBytes)
		}
		if most := max(tokensOf(c.outBytes), 2*c.most+1024); u.Completion > most {
			t.Fatalf("%q: booked %+v, want at most %d", in, u, most)
		}
		if failed == nil && c.outBytes > 3*(2*int(c.most)+1024)+maxEventSize {
			t.Fatalf("%d bytes passed a limit of %d tokens", c.outBytes, c.most)
		}
		if failed != nil && errors.Is(failed.Cause, errSaid) && out.reply.Reveal().text.Len() > c.outBytes {
			t.Fatalf("%q: more was given than came", in)
		}
	})
}
