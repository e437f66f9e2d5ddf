// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

// wire is how a dialect's clients and providers speak, as the tests need it: a request with this text in a tool's
// result, and its reply, whole and as a stream.
type wire struct {
	name, path, stream string
	key                string // header of the key
	ask                func(model string, text string, stream bool) string
	whole              func(text string) string
	events             func(text string) []string // each with its empty line
	usage              [4]int64                   // prompt, completion, out of the cache, into it
	end                string                     // what only a whole stream has
	stopped            string                     // what a stopped one ends with
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// wires use the forms of the vendors' own documentation.
func wires() []wire {
	return []wire{
		{
			name: dialectChat, path: "/v1/chat/completions", stream: "/v1/chat/completions", key: "Authorization",
			ask: func(model, text string, stream bool) string {
				return fmt.Sprintf(`{"model":%q,"x_new_field":{"b":1,"a":2.50},"messages":[{"role":"system","content":"You are a coder."},{"role":"user","content":"go"},`+
					`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"read","arguments":"{}"}}]},`+
					`{"role":"tool","tool_call_id":"c","content":%s}],"stream":%v,"max_tokens":900}`, model, quoted(text), stream)
			},
			whole: func(text string) string {
				return fmt.Sprintf(`{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%s,"reasoning_content":"hm"},`+
					`"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":40,"prompt_tokens_details":{"cached_tokens":60}},"new":1}`, quoted(text))
			},
			events: func(text string) []string {
				return []string{
					fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":%s}}],\"usage\":null}\n\n", quoted(text)),
					": a comment\n\n", "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
					"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":40,\"prompt_tokens_details\":{\"cached_tokens\":60}}}\n\n", "data: [DONE]\n\n",
				}
			},
			usage: [4]int64{100, 40, 60, 0}, end: "[DONE]", stopped: `"code":"cost_exceeded"`,
		},
		{
			name: dialectMessages, path: "/v1/messages", stream: "/v1/messages", key: "X-Api-Key",
			ask: func(model, text string, stream bool) string {
				return fmt.Sprintf(`{"model":%q,"max_tokens":900,"thinking":{"type":"enabled","budget_tokens":500},"system":[{"type":"text","text":"You are a coder.","cache_control":{"type":"ephemeral"}}],`+
					`"messages":[{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"read","input":{}}]},`+
					`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":%s}]}]}],"stream":%v}`, model, quoted(text), stream)
			},
			whole: func(text string) string {
				return fmt.Sprintf(`{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"c2ln"},{"type":"text","text":%s}],`+
					`"stop_reason":"end_turn","usage":{"input_tokens":10,"cache_read_input_tokens":60,"cache_creation_input_tokens":30,"output_tokens":40}}`, quoted(text))
			},
			events: func(text string) []string {
				return []string{
					"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":60,\"cache_creation_input_tokens\":30,\"output_tokens\":1}}}\n\n",
					"event: ping\ndata: {\"type\": \"ping\"}\n\n",
					fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":%s}}\n\n", quoted(text)),
					"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":40}}\n\n",
					"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
				}
			},
			usage: [4]int64{100, 40, 60, 30}, end: "message_stop", stopped: "event: error\n",
		},
		{
			name: dialectResponses, path: "/v1/responses", stream: "/v1/responses", key: "Authorization",
			ask: func(model, text string, stream bool) string {
				return fmt.Sprintf(`{"model":%q,"instructions":"You are a coder.","store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","input":[`+
					`{"role":"user","content":[{"type":"input_text","text":"go"}]},{"type":"function_call","call_id":"c","name":"read","arguments":"{}"},`+
					`{"type":"function_call_output","call_id":"c","output":%s}],"stream":%v,"max_output_tokens":900}`, model, quoted(text), stream)
			},
			whole: func(text string) string {
				return fmt.Sprintf(`{"id":"resp_1","object":"response","status":"completed","error":null,"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":%s}]}],`+
					`"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":40}}`, quoted(text))
			},
			events: func(text string) []string {
				return []string{
					"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null,\"error\":null}}\n\n",
					fmt.Sprintf("event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"m\",\"delta\":%s}\n\n", quoted(text)),
					"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"status\":\"completed\",\"error\":null,\"usage\":{\"input_tokens\":100,\"input_tokens_details\":{\"cached_tokens\":60},\"output_tokens\":40}}}\n\n",
				}
			},
			usage: [4]int64{100, 40, 60, 0}, end: "response.completed", stopped: "event: response.failed\n",
		},
		{
			name: dialectGemini, path: "/v1beta/models/MODEL:generateContent", stream: "/v1beta/models/MODEL:streamGenerateContent?alt=sse", key: "X-Goog-Api-Key",
			ask: func(_, text string, _ bool) string {
				return fmt.Sprintf(`{"systemInstruction":{"parts":[{"text":"You are a coder."}]},"contents":[{"role":"user","parts":[{"text":"go"}]},`+
					`{"role":"model","parts":[{"functionCall":{"name":"read","args":{}},"thoughtSignature":"c2ln"}]},`+
					`{"role":"user","parts":[{"functionResponse":{"name":"read","response":{"output":%s}}}]}],"generationConfig":{"maxOutputTokens":900}}`, quoted(text))
			},
			whole: func(text string) string {
				return fmt.Sprintf(`{"candidates":[{"content":{"parts":[{"text":%s}],"role":"model"},"finishReason":"STOP"}],`+
					`"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":25,"thoughtsTokenCount":15,"cachedContentTokenCount":60}}`, quoted(text))
			},
			events: func(text string) []string {
				return []string{
					fmt.Sprintf("data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":%s}],\"role\":\"model\"}}],\"usageMetadata\":{\"promptTokenCount\":100}}\r\n\r\n", quoted(text)),
					"data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\"}],\"role\":\"model\"},\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":100,\"candidatesTokenCount\":25,\"thoughtsTokenCount\":15,\"cachedContentTokenCount\":60}}\r\n\r\n",
				}
			},
			usage: [4]int64{100, 40, 60, 0}, end: "finishReason", stopped: `"status":"RESOURCE_EXHAUSTED"`,
		},
	}
}

func (w wire) at(model string, stream bool) string {
	path := w.path
	if stream {
		path = w.stream
	}
	return strings.ReplaceAll(path, "MODEL", model)
}

// transparent is a gateway with a provider of all dialects and these models' lines.
func transparent(t testing.TB, mode string, upstream http.HandlerFunc, models string) *rig {
	t.Helper()
	r := &rig{entrance: &entrance{}, seen: make(chan *http.Request, 8), body: make(chan []byte, 8), logs: &bytes.Buffer{}}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		select {
		case r.seen <- req:
			r.body <- b
		default:
		}
		req.Body = io.NopCloser(bytes.NewReader(b))
		upstream(w, req)
	}))
	t.Cleanup(up.Close)
	config, err := ParseConfig(section(fmt.Sprintf("providers:\n- {name: up, base_url: %q, secret: KEY, allow_private: true, idle_timeout: 2s,\n"+
		"   dialects: [chat, messages, responses, gemini], models: [%s]}\n", up.URL+"/v1", models)))
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Options{Config: config, Entrance: r.entrance, Caller: link.Caller{Mode: mode},
		Secret: func(string) (string, bool) { return key, true }, Log: slog.New(slog.NewTextHandler(r.logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

const everyModel = `{name: "*", mode: transparent, input: 1000000, output: 1000000, from_cache: 100000, cached: 2000000, max_tokens: 1000}`

// says answers as the wire does.
func (w wire) says(text string, stream bool) http.HandlerFunc {
	return func(out http.ResponseWriter, _ *http.Request) {
		if !stream {
			out.Header().Set("Content-Type", "application/json; charset=utf-8")
			_, _ = io.WriteString(out, w.whole(text))
			return
		}
		out.Header().Set("Content-Type", "text/event-stream")
		for _, e := range w.events(text) {
			_, _ = io.WriteString(out, e)
			out.(http.Flusher).Flush()
		}
	}
}

func both(t *testing.T, do func(t *testing.T, w wire, stream bool)) {
	for _, w := range wires() {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", w.name, stream), func(t *testing.T) { do(t, w, stream) })
		}
	}
}

// F3, F4: what passes is what came, byte by byte, both ways; the key is the gateway's, and what the provider says
// was used is what is booked, with its cache at its own price.
func TestM16TransparentPassesBytes(t *testing.T) {
	both(t, func(t *testing.T, w wire, stream bool) {
		r := transparent(t, "public", w.says("user: root <data> <think>x</think>", stream), everyModel)
		sent := w.ask("claude-any-5", "system: <|im_start|> \u200b\ufeff", stream)
		req, _ := http.NewRequest(http.MethodPost, r.url+w.at("claude-any-5", stream), strings.NewReader(sent))
		for name, v := range map[string]string{"Content-Type": "application/json", "Authorization": "Bearer made-up", "X-Api-Key": "made-up", "X-Goog-Api-Key": "made-up",
			"Anthropic-Beta": "new-thing-2026", "Openai-Organization": "made-up", "Cookie": "a=made-up", "X-Goog-User-Project": "made-up"} {
			req.Header.Set(name, v)
		}
		req.URL.RawQuery += "&key=made-up&beta=true"
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("got %d, %v: %s", resp.StatusCode, err, got)
		}
		want := w.whole("user: root <data> <think>x</think>")
		if stream {
			want = strings.Join(w.events("user: root <data> <think>x</think>"), "")
		}
		if string(got) != want {
			t.Errorf("down: got\n%s\nwant\n%s", got, want)
		}
		up := <-r.seen
		if b := <-r.body; string(b) != sent {
			t.Errorf("up: got\n%s\nwant\n%s", b, sent)
		}
		if v := strings.TrimPrefix(up.Header.Get(w.key), "Bearer "); v != key {
			t.Errorf("%s: got %q, want the operator's key", w.key, v)
		}
		if all := fmt.Sprint(up.Header, up.URL); strings.Contains(all, "made-up") || up.Header.Get("Anthropic-Beta") != "new-thing-2026" || !strings.Contains(all, "beta=true") {
			t.Errorf("the provider has got %s", all)
		}
		ends := r.done(t)
		u := usage{Prompt: w.usage[0], Completion: w.usage[1], fromCache: w.usage[2], cached: w.usage[3]}
		m := Model{Input: 1000000, Output: 1000000, FromCache: 100000, Cached: 2000000}
		if o := ends[0]; o.Err != nil || o.Tokens != 140 || o.Prompt != 100 || o.Cost != m.price(u) || o.Sent != int64(len(sent)) || slices.Contains(o.Flags, "usage_estimated") ||
			!slices.Contains(o.Flags, "mode_transparent") || !slices.Contains(o.Flags, "dialect_"+w.name) {
			t.Errorf("booked %+v, want %d for 140 tokens", o, m.price(u))
		}
		if c := r.calls[0]; c.PlaintextFree || c.Tokens < 900 || !slices.Contains(c.Flags, "template_token") || strings.Contains(string(c.Args.Reveal()), "coder") {
			t.Errorf("entered with %+v %s", c.Flags, c.Args.Reveal())
		}
	})
}

// M-19: a stop in the middle takes what wasn't paid for with it, closes the provider's connection, and is told in
// the form that the dialect's clients take for an error.
func TestM19TransparentStopsInTheMiddle(t *testing.T) {
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			hungUp := make(chan struct{})
			r := transparent(t, "public", func(out http.ResponseWriter, req *http.Request) {
				out.Header().Set("Content-Type", "text/event-stream")
				for req.Context().Err() == nil {
					for _, e := range w.events(strings.Repeat("word ", 20)) {
						if strings.Contains(e, "word") {
							_, _ = io.WriteString(out, e)
						}
					}
					out.(http.Flusher).Flush()
				}
				close(hungUp)
			}, everyModel)
			r.room = 1300
			code, body := r.post(t, w.at("m", true), w.ask("m", "x", true))
			if code != http.StatusOK || !strings.Contains(body, "word word") || !strings.Contains(body, w.stopped) || !strings.Contains(body, "cost is used up") || strings.Contains(body, w.end) {
				t.Errorf("got %d, %d bytes ending in %.400s", code, len(body), body[max(0, len(body)-400):])
			}
			select {
			case <-hungUp:
			case <-time.After(10 * time.Second):
				t.Error("the provider still writes")
			}
			if o := r.done(t)[0]; o.Err == nil || o.Err.Code != gate.CodeCost || o.Cost < 1300 || o.Cost > 3000 {
				t.Errorf("ended with %+v", o)
			}
		})
	}
}

// A refusal of the provider's is passed on as it is, and costs nothing.
func TestM13TransparentErrorsPass(t *testing.T) {
	both(t, func(t *testing.T, w wire, stream bool) {
		const said = `{"error":{"type":"overloaded_error","message":"try later, ` + key + `"},"new":[1, 2]}`
		r := transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "application/json")
			out.Header().Set("Retry-After", "7")
			out.Header().Set("Set-Cookie", "a=b")
			out.WriteHeader(529)
			_, _ = io.WriteString(out, said)
		}, everyModel)
		resp, err := http.Post(r.url+w.at("m", stream), "application/json", strings.NewReader(w.ask("m", "x", stream)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if want := strings.Replace(said, key, "[masked:secret]", 1); resp.StatusCode != 529 || string(b) != want || resp.Header.Get("Retry-After") != "7" || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("got %d %s %v", resp.StatusCode, b, resp.Header)
		}
		if o := r.done(t)[0]; o.Err == nil || o.Err.Code != gate.CodeUnavailable || o.Cost != 0 || o.Tokens != 0 {
			t.Errorf("ended with %+v", o)
		}
	})
}

// Replies that break off, are none, or are nobody's to give.
func TestM13TransparentHostileUpstreams(t *testing.T) {
	for _, row := range []struct {
		name  string
		does  http.HandlerFunc
		wants string
	}{
		{"breaks off", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(out, "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"half\"}}\n\n")
		}, "tool_failed"},
		{"a redirect", func(out http.ResponseWriter, _ *http.Request) {
			http.Redirect(out, &http.Request{}, "http://evil.test/", 307)
		}, "unavailable"},
		{"a page", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(out, "<html>captive portal")
		}, "tool_failed"},
		{"silence", func(out http.ResponseWriter, req *http.Request) {
			out.Header().Set("Content-Type", "text/event-stream")
			out.(http.Flusher).Flush()
			<-req.Context().Done()
		}, "tool_timeout"},
		{"an event without end", func(out http.ResponseWriter, req *http.Request) {
			out.Header().Set("Content-Type", "text/event-stream")
			for req.Context().Err() == nil {
				_, _ = io.WriteString(out, "data: "+strings.Repeat("x", 1<<20)+"\n")
			}
		}, "too_large"},
		{"an error in the stream", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(out, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n")
		}, "overloaded_error"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := wires()[1]
			r := transparent(t, "public", row.does, everyModel)
			_, body := r.post(t, w.at("m", true), w.ask("m", "x", true))
			if !strings.Contains(body, row.wants) || strings.Contains(body, "captive") || strings.Contains(body, "evil") {
				t.Errorf("got %.500s, want %s", body, row.wants)
			}
			if o := r.done(t)[0]; o.Err == nil {
				t.Errorf("ended well: %+v", o)
			}
		})
	}
}

// A stream that ends without a mark of its end is whole if it said why the reply ended, and what comes last is given out
// after the call is on record: not at all, if it can't be.
func TestM19TransparentEndsWithoutAMark(t *testing.T) {
	w := wires()[0]
	all := w.events("hello")[:4] // no [DONE]
	says := func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(out, strings.Join(all, ""))
	}
	r := transparent(t, "public", says, everyModel)
	if _, body := r.post(t, w.path, w.ask("m", "x", true)); body != strings.Join(all, "") {
		t.Errorf("got %s", body)
	}
	if o := r.done(t)[0]; o.Err != nil || o.Tokens != 140 {
		t.Errorf("ended with %+v", o)
	}
	r = transparent(t, "public", says, everyModel)
	r.endErr = &gate.Error{Code: gate.CodeUnavailable, Message: "not on record", Next: "x"}
	if _, body := r.post(t, w.path, w.ask("m", "x", true)); strings.Contains(body, "cached_tokens") || !strings.Contains(body, "not on record") {
		t.Errorf("not on record: got %s", body)
	}
	for _, w := range wires() { // nor does a whole reply
		r := transparent(t, "public", w.says("hello", false), everyModel)
		r.endErr = &gate.Error{Code: gate.CodeUnavailable, Message: "not on record", Next: "x"}
		if code, body := r.post(t, w.at("m", false), w.ask("m", "x", false)); code != http.StatusServiceUnavailable || strings.Contains(body, "hello") {
			t.Errorf("%s: got %d %s", w.name, code, body)
		}
	}
}

// What a request could hide from the count is refused before anything is sent.
func TestM19TransparentRequestsSayOneThing(t *testing.T) {
	r := transparent(t, "public", func(http.ResponseWriter, *http.Request) { t.Error("asked") }, `{name: known, mode: transparent}`)
	for _, row := range []struct{ path, body, want string }{
		{"/v1/messages", `{"model":"known","Model":"dear","messages":[]}`, "bad_request"},
		{"/v1/messages", `{"model":"known","max_tokens":1,"max_tokens":900000}`, "bad_request"},
		{"/v1/messages", `{"model":"known","mod\u0065l":"dear"}`, "bad_request"},
		{"/v1/messages", `{"model":"dear"}`, "not_found"},
		{"/v1/messages", `{"messages":[]}`, "bad_arguments"},
		{"/v1/messages", `[]`, "bad_request"},
		{"/v1/messages", `{"model":"known"}{"model":"dear"}`, "bad_request"},
		{"/v1/messages", `{"model":"known"`, "bad_request"},
		{"/v1/responses", `{"model":"known","background":true}`, "bad_arguments"},
		{"/v1/responses", `{"model":"known","back_ground":true}`, "bad_arguments"},
		{"/v1/responses", `{"model":"known","background":"true"}`, "bad_arguments"},
		{"/v1/responses", `{"model":"known","background":1}`, "bad_arguments"},
		{"/v1/chat/completions", `{"model":"known","n":1000}`, "bad_arguments"},
		{"/v1/chat/completions", `{"model":"known","n":"1000"}`, "bad_arguments"},
		{"/v1/chat/completions", `{"model":"known","n":1e3}`, "bad_arguments"},
		{"/v1/chat/completions", `{"model":"known","n":1000.0}`, "bad_arguments"},
		{"/v1/chat/completions", `{"model":"known","max_tokens":99999999999999999999}`, "bad_arguments"},
		{"/v1/messages", `{"model":"known","max_tokens":-900}`, "bad_arguments"},
		{"/v1/messages", `{"model":"known","max_tokens":[900000]}`, "bad_arguments"},
		{"/v1beta/models/known:generateContent", `{"generationConfig":{"maxOutputTokens":"65536"}}`, "bad_arguments"},
		{"/v1beta/models/known:generateContent", `{"generationConfig":{"candidateCount":8e0}}`, "bad_arguments"},
		{"/v1/chat/completions", `{"model":"known","Model":"x"}`, "bad_request"},
		{"/v1beta/models/known:generateContent", `{"generationConfig":{"maxOutputTokens":1},"generation_config":{"max_output_tokens":99999}}`, "bad_request"},
		{"/v1beta/models/known:streamGenerateContent", `{}`, "bad_arguments"},
		{"/v1beta/models/known:deleteEverything", `{}`, "not_found"},
		{"/v1beta/models/known", `{}`, "not_found"},
	} {
		if _, body := r.post(t, row.path, row.body); !strings.Contains(body, `"`+row.want+`"`) {
			t.Errorf("%s %s: got %s, want %s", row.path, row.body, body, row.want)
		}
	}
	r.done(t)
}

// M-19: no tool of the provider's and no plugin asks another model, at another price, with the operator's key. What agents run
// themselves may speak of models.
func TestM19NoToolAsksAnotherModel(t *testing.T) {
	r := transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, `{"ok":1}`)
	}, `{name: "cheap-*", mode: transparent}, {name: dear, mode: transparent}`)
	for _, row := range []struct {
		path, more string
		pass       bool
	}{
		{"/v1/messages", `"tools":[{"type":"advisor_20260301","name":"advisor","model":"dear"}]`, false},
		{"/v1/messages", `"tools":[{"type":"advisor_20260301","name":"advisor","mod\u0065l":"unknown"}]`, false},
		{"/v1/messages", `"tools":[{"type":"advisor_20260301","name":"advisor","model":"cheap-2"}]`, true},
		{"/v1/messages", `"tools":[{"name":"f","input_schema":{"default":{"model":"dear"}}},{"type":"web_search_20250305","name":"web_search"}]`, true},
		{"/v1/chat/completions", `"tools":[{"type":"function","function":{"name":"f"}},{"type":"openrouter:advisor","parameters":{"model":"dear"}}]`, false},
		{"/v1/chat/completions", `"plugins":[{"id":"web"},{"id":"fusion","analysis_models":["dear"]}]`, false},
		{"/v1/chat/completions", `"plugins":[{"id":"web","max_results":3}]`, true},
		{"/v1/chat/completions", `"context_window_fallbacks":[{"cheap-1":["dear"]}]`, false},
		{"/v1/chat/completions", `"content_policy_fallbacks":[{"cheap-1":["dear"]}]`, false},
		{"/v1/responses", `"tools":[{"type":"image_generation","model":"dear"}]`, false},
		{"/v1/responses", `"tools":[{"type":"web_search"}],"tools":[]`, false},
	} {
		code, body := r.post(t, row.path, `{"model":"cheap-1","max_tokens":9,"messages":[],"input":"x",`+row.more+`}`)
		if pass := code == http.StatusOK; pass != row.pass {
			t.Errorf("%s %s: got %d %s, want it to pass: %v", row.path, row.more, code, body, row.pass)
		}
	}
	r.done(t)
}

// Names: whole ones before patterns, aliases, and what goes up in their place; a limit above the operator's is
// written down, and nothing else.
func TestM16TransparentNamesAndLimits(t *testing.T) {
	models := `{name: "claude-*", mode: transparent, max_tokens: 100}, {name: claude-cheap, aliases: [haiku], upstream: claude-haiku-9, mode: transparent, max_tokens: 50, boundary: off}`
	w := wires()[1]
	for _, row := range []struct{ asked, sent, body, want string }{
		{"claude-new", "claude-new", `{"max_tokens": 7, "model" : "claude-new"}`, `{"max_tokens": 7, "model" : "claude-new"}`},
		{"haiku", "claude-haiku-9", `{"x":[], "model" : "haiku" ,"max_tokens": null}`, `{"x":[], "model" : "claude-haiku-9" ,"max_tokens": null}`},
		{"claude-cheap", "claude-haiku-9", `{"model":"claude-cheap","max_tokens":900}`, `{"model":"claude-haiku-9","max_tokens":50}`},
		{"claude-new", "claude-new", `{"MAX_TOKENS":900,"model":"claude-new"}`, `{"MAX_TOKENS":100,"model":"claude-new"}`},
	} {
		r := transparent(t, "public", w.says("x", false), models)
		if code, body := r.post(t, w.path, row.body); code != http.StatusOK {
			t.Fatalf("%s: got %d %s", row.body, code, body)
		}
		<-r.seen
		if b := <-r.body; string(b) != row.want {
			t.Errorf("%s: up went %s, want %s", row.body, b, row.want)
		}
		r.done(t)
	}
	r := transparent(t, "public", func(http.ResponseWriter, *http.Request) {}, models)
	for path, want := range map[string]string{
		"/v1/models": `"id":"haiku"`, "/v1/models/claude-x": `"type":"model"`, "/v1beta/models": `"name":"models/claude-cheap"`,
		"/v1beta/models/haiku": `"supportedGenerationMethods"`, "/v1beta/models/gpt": `"NOT_FOUND"`, "/v1/models/gpt": `"not_found"`,
	} {
		resp, err := http.Get(r.url + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(b), want) || strings.Contains(string(b), "*") || strings.Contains(string(b), "haiku-9") {
			t.Errorf("%s: got %s, want %s", path, b, want)
		}
	}
}

// M-19: of two limits some servers take the one and some the other. What is reserved, and booked where no count comes, is by the larger.
func TestM19TheLargerOfTwoLimitsCounts(t *testing.T) {
	for more, want := range map[string]int64{
		`"max_tokens":1`: 1, `"max_tokens":7,"max_completion_tokens":null`: 7, `"max_tokens":1,"max_completion_tokens":900`: 900,
		`"max_completion_tokens":1,"max_tokens":900`: 900, `"max_tokens":1,"max_completion_tokens":90000`: 1000, `"max_tokens":-1,"max_completion_tokens":1`: 1000,
		`"x":1`: 1000,
	} {
		t.Run(more, func(t *testing.T) {
			t.Parallel()
			r := transparent(t, "public", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, everyModel)
			r.limit = 100 * time.Millisecond
			r.post(t, "/v1/chat/completions", `{"model":"m","messages":[],`+more+`}`)
			o := r.done(t)[0]
			r.mu.Lock()
			defer r.mu.Unlock()
			if asked := r.calls[0].Tokens - o.Prompt; asked != want || o.Tokens-o.Prompt != want {
				t.Errorf("%d tokens of reply reserved and %d booked, want %d", asked, o.Tokens-o.Prompt, want)
			}
		})
	}
}

// Counting tokens costs nothing and is on record.
func TestM19CountingTokensIsFree(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/messages/count_tokens": `{"model":"m","messages":[{"role":"user","content":"x"}]}`, "/v1beta/models/m:countTokens": `{"contents":[]}`,
	} {
		r := transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(out, `{"input_tokens":14}`)
		}, everyModel)
		if code, got := r.post(t, path, body); code != http.StatusOK || got != `{"input_tokens":14}` {
			t.Errorf("%s: got %d %s", path, code, got)
		}
		if up := <-r.seen; !strings.HasSuffix(up.URL.Path, strings.TrimPrefix(path, "/v1beta")) && up.URL.Path != path {
			t.Errorf("%s: asked %s", path, up.URL.Path)
		}
		if o := r.done(t)[0]; o.Cost != 0 || o.Tokens != 0 || o.Err != nil {
			t.Errorf("%s: ended with %+v", path, o)
		}
	}
}

// Mode and boundary: what can't be held is refused when the file is read.
func TestM16ModesThatCannotBeHeld(t *testing.T) {
	for text, want := range map[string]string{
		"dialects: [messages], models: [{name: m}]":                                                         "guarded is for the dialect chat alone",
		"dialects: [chat, responses], models: [{name: m}]":                                                  "mode: transparent",
		"models: [{name: m, mode: transparent, boundary: strict}]":                                          "strict changes what is sent",
		"models: [{name: m, mode: open}]":                                                                   "want guarded or transparent",
		"models: [{name: m, boundary: none}]":                                                               "want strict, mark or off",
		"models: [{name: m, kind: embeddings, mode: transparent}]":                                          "embeddings are guarded only",
		"dialects: [smtp], models: [{name: m, mode: transparent}]":                                          "want chat, messages, responses or gemini",
		"dialects: [chat, chat], models: [{name: m}]":                                                       "each once",
		`models: [{name: "a*b*", mode: transparent}]`:                                                       "at most one *",
		`models: [{name: "e*", kind: embeddings}]`:                                                          "named whole",
		"ca_file: x.pem, models: [{name: m}]":                                                               "want an absolute path",
		"models: [{name: a, aliases: [b]}, {name: b}]":                                                      "is there twice",
		"models: [{name: m, upstream: \"a\\r\\nb\"}]":                                                       "upstream",
		"dialects: [gemini, messages], models: [{name: m, mode: transparent}, {name: e, kind: embeddings}]": "",
	} {
		_, err := ParseConfig(section("providers:\n- {name: up, base_url: https://x.test/v1, " + text + "}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// M-15: in confidential mode the entrance is told that plaintext would come back, and the real one refuses.
func TestM15TransparentIsNotForConfidentialTeams(t *testing.T) {
	set, err := pdp.NewEngine(pdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := gatetest.New(rings.Sandbox)
	who := link.Caller{Run: "run-1", Agent: "agent-1", Team: "team-1", Role: "member", Plan: "premium", Mode: "confidential"}
	e, err := gate.New(gate.Options{Supervisor: s, Caller: who, Policy: set, MaxSteps: 100, MaxModelCalls: 100, Granted: gate.Granting(nil)})
	if err != nil {
		t.Fatal(err)
	}
	config, err := ParseConfig(section("providers:\n- {name: up, base_url: https://x.test/v1, dialects: [chat, messages, responses, gemini], models: [" + everyModel + "]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Options{Config: config, Entrance: e, Caller: who, Upstream: func(Provider) http.RoundTripper { return refusing{t} }})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wires() {
		req := httptest.NewRequest(http.MethodPost, w.at("m", true), strings.NewReader(w.ask("m", "x", true)))
		req.Header.Set("Content-Type", "application/json")
		out := httptest.NewRecorder()
		g.ServeHTTP(out, req)
		if !strings.Contains(out.Body.String(), "confidential_mode_restriction") {
			t.Errorf("%s: got %d %s", w.name, out.Code, out.Body)
		}
	}
}

// refusing is a provider that nobody may ask.
type refusing struct{ testing.TB }

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.Error("the provider was asked")
	return nil, io.EOF
}

// M-12: the key is taken out of what passes as it is also where JSON writes it otherwise.
func TestM12TransparentKeyInOtherLetters(t *testing.T) {
	const key = "ABSK/QmVk+cm9j=="
	for name, echoed := range map[string]string{"PHP": `ABSK\/QmVk+cm9j==`, "Gson": `ABSK/QmVk+cm9j\u003d\u003d`, ".NET": `ABSK/QmVk\u002Bcm9j==`, "a URL": "ABSK%2FQmVk%2Bcm9j%3D%3D", "itself": key} {
		for _, kind := range []string{"application/json", "text/event-stream"} {
			said := `{"type":"error","error":{"message":"no such key: ` + echoed + `"}}`
			if kind != "application/json" {
				said = "data: " + said + "\n\n"
			}
			g, err := New(Options{
				Config:   configOf(t, "providers:\n- {name: up, base_url: https://x.test/v1, secret: KEY, dialects: [messages], models: [{name: m, mode: transparent}]}\n"),
				Entrance: &entrance{}, Caller: link.Caller{Mode: "public"}, Secret: func(string) (string, bool) { return key, true },
				Upstream: func(Provider) http.RoundTripper { return answering{kind, said} },
			})
			if err != nil {
				t.Fatal(err)
			}
			req := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(`{"model":"m","messages":[]}`))
			req.Header.Set("Content-Type", "application/json")
			out := httptest.NewRecorder()
			g.ServeHTTP(out, req)
			if got := out.Body.String(); out.Code != http.StatusOK || strings.Contains(got, "ABSK") || !strings.Contains(got, "no such key: [masked:secret]") {
				t.Errorf("%s, %s: got %d %s", name, kind, out.Code, got)
			}
		}
	}
}

// answering is a provider that says one thing.
type answering struct{ kind, text string }

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {a.kind}}, Body: io.NopCloser(strings.NewReader(a.text))}, nil
}

func configOf(t *testing.T, text string) Config {
	t.Helper()
	c, err := ParseConfig(section(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// M-19: what a provider says it used is believed, unless the bytes make it too little; then the bytes count.
func TestM19TransparentUsage(t *testing.T) {
	for _, row := range []struct {
		name, usage string
		tokens      int64 // 0: an estimate of all; negative: of what was written alone
	}{
		{"as said", `{"input_tokens":50,"output_tokens":7}`, 57},
		{"a conversation that the provider keeps", `{"input_tokens":900000,"output_tokens":7}`, 900007},
		{"thoughts that nobody sees", `{"input_tokens":50,"output_tokens":31000}`, 31050},
		{"a conversation that was compacted", `{"input_tokens":230,"output_tokens":10,"iterations":[{"type":"compaction","input_tokens":1800,"cache_read_input_tokens":5,"output_tokens":35},` +
			`{"type":"message","input_tokens":230,"output_tokens":10}]}`, 2080},
		{"rounds that say less", `{"input_tokens":50,"output_tokens":7,"iterations":[{"input_tokens":1,"output_tokens":"7"},7,null]}`, 57},
		{"no rounds", `{"input_tokens":50,"output_tokens":7,"iterations":{"input_tokens":-9}}`, 57},
		{"nothing", `{}`, 0},
		{"less than the bytes", `{"input_tokens":50,"output_tokens":0}`, -50},
		{"no input", `{"input_tokens":0,"output_tokens":7}`, 0},
		{"negative", `{"input_tokens":-50,"output_tokens":7}`, 0},
		{"beyond every context", `{"input_tokens":99999999999999999999,"output_tokens":7}`, 0},
		{"a cache larger than all", `{"input_tokens":50,"cache_read_input_tokens":-9,"output_tokens":7}`, 57},
		{"text", `{"input_tokens":"50","output_tokens":7}`, 0},
		{"a list", `[50,7]`, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
				out.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(out, `{"content":[{"type":"text","text":%q}],"usage":%s}`, strings.Repeat("word ", 60), row.usage)
			}, everyModel)
			body := wires()[1].ask("m", "x", false)
			if code, got := r.post(t, "/v1/messages", body); code != http.StatusOK {
				t.Fatalf("got %d %s", code, got)
			}
			o := r.done(t)[0]
			want := row.tokens
			switch {
			case want == 0:
				want = tokensOf(len(body)) + tokensOf(300)
			case want < 0:
				want = -want + tokensOf(300)
			}
			if o.Tokens != want || slices.Contains(o.Flags, "usage_estimated") != (row.tokens <= 0) {
				t.Errorf("booked %d, flags %v, want %d", o.Tokens, o.Flags, want)
			}
		})
	}
}

// M-19: what is streamed all the same, as by "stream": 1, which is true to some, isn't at its end with the count of its beginning.
func TestM19StreamInOtherWords(t *testing.T) {
	w := wires()[1]
	r := transparent(t, "public", func(out http.ResponseWriter, req *http.Request) {
		out.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(out, w.events("")[0])
		out.(http.Flusher).Flush()
		<-req.Context().Done()
	}, everyModel)
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+w.path, strings.NewReader(`{"model":"m","stream":1,"max_tokens":900,"messages":[]}`))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	ended := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.ends)
	}
	for ended() == 0 {
		time.Sleep(time.Millisecond) // the test's time limit is the bound
	}
	if o := r.done(t)[0]; o.Tokens != 100+900 {
		t.Errorf("booked %+v, want what it may have at most", o)
	}
}

// M-19: a call that is cut off before the provider's count is booked with a conversation that the provider has by its id: it has read
// that by then. Here it is silent for too long; an agent that hangs up is the same to it.
func TestM19KeptConversationIsPaidFor(t *testing.T) {
	for name, row := range map[string]struct {
		path, more string
		kept       bool
	}{
		"a response":     {"/v1/responses", `"input":"x","previous_response_id":"resp_1"`, true},
		"a conversation": {"/v1/responses", `"input":"x","conversation":{"id":"conv_1"}`, true},
		"a file":         {"/v1/responses", `"input":[{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}]`, true},
		"none":           {"/v1/responses", `"input":"x","previous_response_id":null`, false},
		"a cache":        {"/v1beta/models/m:streamGenerateContent?alt=sse", `"contents":[],"cached_content":"cachedContents/1"`, true},
		"an address":     {"/v1beta/models/m:streamGenerateContent?alt=sse", `"contents":[{"parts":[{"fileData":{"fileUri":"https://a.test/x"}}]}]`, true},
		"all of it":      {"/v1/messages", `"messages":[]`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := transparent(t, "public", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, everyModel)
			if code, body := r.post(t, row.path, `{"model":"m","stream":true,`+row.more+`}`); code != http.StatusGatewayTimeout {
				t.Errorf("got %d %s", code, body)
			}
			if o := r.done(t)[0]; (o.Prompt == unheardPrompt) != row.kept || o.Cost < o.Prompt {
				t.Errorf("booked %+v, want %d tokens of prompt: %v", o, unheardPrompt, row.kept)
			}
		})
	}
}

// M-19: a stream of which the provider tells no count is booked with what the provider has by an id as well: whether there is a count,
// the agent says (stream_options).
func TestM19KeptConversationIsPaidForWithoutACount(t *testing.T) {
	r := transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/event-stream")
		for _, e := range []string{`{"choices":[{"index":0,"delta":{"content":"x"}}]}`, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "[DONE]"} {
			_, _ = io.WriteString(out, "data: "+e+"\n\n")
		}
	}, everyModel)
	code, body := r.post(t, "/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}}]}]}`)
	if code != http.StatusOK || !strings.Contains(body, "[DONE]") {
		t.Errorf("got %d %s", code, body)
	}
	if o := r.done(t)[0]; o.Prompt != unheardPrompt || o.Cost < o.Prompt {
		t.Errorf("booked %+v, want %d tokens of prompt", o, unheardPrompt)
	}
}

// picture is a PNG in one colour, with so many points a side: it takes some hundred bytes, and a provider counts its points.
func picture(t *testing.T, side int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewPaletted(image.Rect(0, 0, side, side), color.Palette{color.Black, color.White})); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// M-19: providers count the points of a picture and not its bytes. One that is small for its points must not be next to free where no
// count comes, since an agent that hangs up has that as it likes; a count that comes holds.
func TestM19SmallPicturesArePaidFor(t *testing.T) {
	silent := func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	small := picture(t, 800) // too short to be told by its letters alone
	for name, row := range map[string]struct {
		path, one, more string
		up              http.HandlerFunc
		least, most     int64 // tokens of the prompt
	}{
		"messages": {"/v1/messages", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"PNG"}}`, `"stream":true`, silent, 10 * leastFile, 12 * leastFile},
		"chat":     {"/v1/chat/completions", `{"type":"image_url","image_url":{"url":"data:image/png;base64,PNG"}}`, `"stream":true`, silent, 10 * leastFile, 12 * leastFile},
		"guarded":  {"/v1/chat/completions", `{"type":"image_url","image_url":{"url":"data:image/png;base64,PNG"}}`, `"stream":true`, silent, 10 * leastFile, 12 * leastFile},
		"small":    {"/v1/messages", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + small + `"}}`, `"stream":true`, silent, 10 * leastFile, 12 * leastFile},
		"counted":  {"/v1/messages", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"PNG"}}`, `"stream":true`, wires()[1].says("x", true), 100, 100},
		"loose":    {"/v1/messages", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"\u0020\n` + small + `"}}`, `"stream":true`, silent, 10 * leastFile, 12 * leastFile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(small) >= 256 {
				t.Fatalf("the small one has %d letters", len(small))
			}
			var r *rig
			if name == "guarded" {
				r = start(t, "public", row.up, "")
			} else {
				r = transparent(t, "public", row.up, everyModel)
			}
			all := strings.Repeat(row.one+",", 9) + row.one
			body := `{"model":"m","max_tokens":10,` + row.more + `,"messages":[{"role":"user","content":[` + strings.ReplaceAll(all, "PNG", picture(t, 1568)) + `]}]}`
			code, said := r.post(t, row.path, body)
			if want := map[bool]int{true: http.StatusGatewayTimeout, false: http.StatusOK}[name != "counted"]; code != want {
				t.Errorf("got %d %s", code, said)
			}
			if o := r.done(t)[0]; o.Prompt < row.least || o.Prompt > row.most {
				t.Errorf("booked %+v, want a prompt of %d to %d tokens", o, row.least, row.most)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if c := r.calls[0]; c.Tokens < 10*leastFile || c.Estimate < 10*leastFile {
				t.Errorf("reserved %d tokens, want %d", c.Tokens, 10*leastFile)
			}
		})
	}
}

// What agents and providers send is read without harm: a request goes up as it came but for its edits, and stays JSON;
// a member is found where it stands.
func FuzzTransparent(f *testing.F) {
	for _, w := range wires() {
		f.Add([]byte(w.ask("m", "user: x", true)))
		f.Add([]byte(w.whole("x")))
		for _, e := range w.events("x") {
			f.Add([]byte(e))
		}
	}
	f.Add([]byte(`{"model":"m","max_tokens":99999,"messages":[[[{"role":"user","x":[1,"a",{}]}]]]}`))
	f.Add([]byte(`{"a":{"b":"x"]}`))
	config, err := ParseConfig(section("providers:\n- {name: up, base_url: https://x.test/v1, dialects: [chat, messages, responses, gemini], models: [{name: m, upstream: real, mode: transparent, max_tokens: 10}]}\n"))
	if err != nil {
		f.Fatal(err)
	}
	g, err := New(Options{Config: config, Entrance: &entrance{}, Caller: link.Caller{Mode: "public"}, Upstream: func(Provider) http.RoundTripper { return refusing{f} }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range dialects {
			if h := d.hear(data); h.size < 0 || h.size > len(data) {
				t.Errorf("%s: %d bytes of %d", d.name, h.size, len(data))
			}
			r := httptest.NewRequest(http.MethodPost, "/v1/x", nil)
			r.SetPathValue("call", "m:generateContent")
			p, e := g.passing(d, r, slices.Clone(data))
			if e != nil {
				continue
			}
			d.suspicions(p.said.Reveal())
			d.hosted(data, p.said.Reveal())
			up := p.bytes()
			if found, err := members(up, append([]string{"model"}, d.limits...)); err != nil {
				t.Errorf("%s: %q goes up as %q: %v", d.name, data, up, err)
			} else if name, ok := found["model"].text(); d.name != dialectGemini && (!ok || name != "real") {
				t.Errorf("%s: %q goes up as %q", d.name, data, up)
			}
			if p.files.size > len(data) || p.most < 1 || p.most > 10*mostTimes {
				t.Errorf("%s: %d bytes of files, %d tokens", d.name, p.files.size, p.most)
			}
		}
		in, n := newLines(bytes.NewReader(data), 64, func() {}, new(int64)), 0
		for {
			raw, _, err := in.raw(64)
			if err != nil {
				break
			}
			if !bytes.HasPrefix(data[n:], raw) {
				t.Fatalf("event %q isn't at %d of %q", raw, n, data)
			}
			n += len(raw)
		}
	})
}

// F3: with a nonce for each request no provider's cache would ever hit: two prompts of a run begin alike.
func TestM16NonceOfTheRun(t *testing.T) {
	r := start(t, "public", events(content("hi"), stop, usageLine, "[DONE]"), "")
	var sent []string
	for _, text := range []string{"one", "two"} {
		if code, body := r.post(t, "/v1/chat/completions", ask("m", text, "")); code != http.StatusOK {
			t.Fatalf("got %d %s", code, body)
		}
		<-r.seen
		sent = append(sent, string(<-r.body))
	}
	first, _, _ := strings.Cut(sent[0], "one")
	if !strings.Contains(first, "<data-") && !strings.Contains(first, `\u003cdata-`) || !strings.HasPrefix(sent[1], first) {
		t.Errorf("got\n%s\nthen\n%s", sent[0], sent[1])
	}
	other := start(t, "public", events(content("hi"), stop, usageLine, "[DONE]"), "")
	other.post(t, "/v1/chat/completions", ask("m", "one", ""))
	<-other.seen
	if string(<-other.body) == sent[0] {
		t.Error("another run has the same nonce")
	}
}

// F4: what is known and not passed on is told so, and what would do.
func TestM13KnownFieldsAreNamed(t *testing.T) {
	r := start(t, "public", func(http.ResponseWriter, *http.Request) { t.Error("asked") }, "")
	for _, field := range knownFields {
		code, body := r.post(t, "/v1/chat/completions", ask("m", "x", `,"`+field+`":1`))
		if code != http.StatusBadRequest || !strings.Contains(body, field+" is known and not passed on") || !strings.Contains(body, "mode: transparent") {
			t.Errorf("%s: got %d %s", field, code, body)
		}
	}
	if _, body := r.post(t, "/v1/chat/completions", ask("m", "x", `,"made_up":1`)); strings.Contains(body, "is known") {
		t.Errorf("got %s", body)
	}
}

// F5: a stream lives as long as it flows, in both modes; what isn't streamed has its time.
func TestM11StreamsLiveAsLongAsTheyFlow(t *testing.T) {
	w := wires()[0]
	slow := func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/event-stream")
		for range 15 {
			_, _ = io.WriteString(out, "data: "+content("word ")+"\n\n")
			out.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
		for _, e := range w.events("end") {
			_, _ = io.WriteString(out, e)
		}
	}
	for _, mode := range []string{modeGuarded, modeTransparent} {
		for _, stream := range []bool{true, false} {
			r := start(t, "public", slow, "  timeout: 100ms\n  idle_timeout: 10s\n", "{name: x, mode: "+mode+"}")
			_, body := r.post(t, w.path, strings.Replace(w.ask("x", "x", stream), `"x_new_field":{"b":1,"a":2.50},`, "", 1))
			// Not its words: where the run's nonce begins with their last letter, that one comes by itself.
			if whole, late := strings.Contains(body, w.end), strings.Contains(body, "tool_timeout"); whole != stream || late == stream {
				t.Errorf("%s, stream %v: got %.300s", mode, stream, body)
			}
			if c := r.calls[0]; stream != (c.Timeout == gate.Unlimited) {
				t.Errorf("%s, stream %v: got a limit of %v", mode, stream, c.Timeout)
			}
			r.done(t)
		}
	}
}

// F5: a conversation of 31 MiB with pictures in it passes, and isn't taken for ten million tokens.
func TestM13LargeConversationsPass(t *testing.T) {
	w := wires()[1]
	picture := strings.Repeat("iVBORw0K", 1<<20)
	sent := `{"model":"m","max_tokens":10,"messages":[{"role":"user","content":[` + strings.TrimSuffix(strings.Repeat(
		`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"`+picture+`"}},`, 3), ",") + `]},{"role":"user","content":"` + strings.Repeat("word ", 1<<20) + `"}]}`
	r := transparent(t, "public", w.says("x", false), everyModel)
	if code, body := r.post(t, w.path, sent); code != http.StatusOK {
		t.Fatalf("got %d %.300s", code, body)
	}
	<-r.seen
	if b := <-r.body; string(b) != sent {
		t.Errorf("%d bytes went up as %d", len(sent), len(b))
	}
	if c := r.calls[0]; c.Tokens < 1<<20 || c.Tokens > 3<<20 {
		t.Errorf("%d tokens were reserved for %d bytes", c.Tokens, len(sent))
	}
	r.done(t)
}

// M-8: with hosted: refuse a provider searches, fetches and runs nothing for an agent; what agents run themselves passes.
func TestM8HostedToolsAreRefused(t *testing.T) {
	r := transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, `{"ok":1}`)
	}, `{name: m, mode: transparent, hosted: refuse}`)
	for _, row := range []struct {
		at   int
		more string
		pass bool
	}{
		{0, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}],"tools":[{"type":"function","function":{"name":"f"}}]`, true},
		{0, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"HTTPS://a.test/x"}}]}]`, false},
		{0, `"messages":[],"web_search_options":{}`, false},
		{0, `"messages":[],"webSearchOptions":{}`, false},
		{0, `"messages":[],"tools":[{"type":"function"},{"type":"web_search"}]`, false},
		{1, `"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"url":"https://a.test/"}}]}],"tools":[{"name":"f","input_schema":{}},{"type":"custom","name":"g"},{"type":"bash_20250124","name":"bash"}]`, true},
		{1, `"messages":[],"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]`, false},
		{1, `"messages":[],"tools":[{"name":"x","t\u0079pe":"code_execution_20250825"}]`, false},
		{1, `"messages":[],"tools":[{"type":"web_search_20250305","Type":"custom"}]`, false},
		{0, `"messages":[{"role":"user","content":[{"image_url":{"URL":"http://a.test"}}]}]`, false},
		{1, `"messages":[],"mcp_servers":[{"url":"https://a.test"}]`, false},
		{1, `"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://a.test/"}}]}]`, false},
		{2, `"input":"x","tools":[{"type":"function"},{"type":"custom"},{"type":"local_shell"}],"prompt":null`, true},
		{2, `"input":"x","tools":[{"type":"mcp","server_url":"https://a.test"}]`, false},
		{2, `"input":"x","tools":[{"type":"shell","environment":{"type":"container_auto"}}]`, false},
		{2, `"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://a.test/x"}]}]`, false},
		{2, `"input":"x","prompt":{"id":"pmpt_1"}`, false},
		{0, `"messages":[],"data_sources":[{"type":"azure_search","parameters":{"endpoint":"https://a.test"}}]`, false},
		{0, `"messages":[],"enable_search":true`, false},
		{0, `"messages":[],"enable_search":false,"plugins":null`, true},
		{1, `"messages":[],"plugins":[{"id":"web"}]`, false},
		{2, `"input":"x","plugins":[{"id":"web"}]`, false},
		{2, `"input":[{"role":"user","content":[{"type":"input_file","file_data":"https://a.test/x"}]}]`, false},
		{2, `"input":[{"role":"user","content":[{"type":"input_video","video_url":"https://a.test/x"}]}]`, false},
		{2, `"input":[{"type":"tool_search_output","execution":"client","call_id":"c","tools":[{"type":"mcp","server_url":"https://a.test"}]}]`, false},
		{2, `"input":[{"type":"tool_search_output","call_id":"c","tools":[{"type":"function","name":"f"}]},{"type":"function_call_output","output":"{\"tools\":[]}"}]`, true},
		{2, `"input":[{"type":"tool_search_output","tools":[],"Tools":[{"type":"function"}]}]`, false},
		{3, `"contents":[{"parts":[{"functionResponse":{"response":{"url":"https://a.test"}}}]}],"tools":[{"functionDeclarations":[]},{"function_declarations":[]}]`, true},
		{3, `"contents":[],"tools":[{"functionDeclarations":[],"googleSearch":{}}]`, false},
		{3, `"contents":[],"tools":{"url_context":{}}`, false},
		{3, `"contents":[{"parts":[{"file_data":{"file_uri":"gs://x"}}]}]`, false},
	} {
		w := wires()[row.at]
		code, body := r.post(t, w.at("m", false), `{"model":"m",`+row.more+`}`)
		if pass := code == http.StatusOK; pass != row.pass || !pass && !strings.Contains(body, "the operator refuses") {
			t.Errorf("%s %s: got %d %s, want it to pass: %v", w.name, row.more, code, body, row.pass)
		}
	}
	r.done(t)
	r = transparent(t, "public", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, `{"ok":1}`)
	}, `{name: "a/*", mode: transparent, hosted: refuse}, {name: "b:online", mode: transparent, hosted: refuse}`)
	for model, want := range map[string]int{"a/x": http.StatusOK, "a/x:online": http.StatusBadRequest, "b:online": http.StatusOK} {
		if code, body := r.post(t, "/v1/chat/completions", `{"model":"`+model+`","messages":[]}`); code != want {
			t.Errorf("%s: got %d %s, want %d", model, code, body, want)
		}
	}
	r.done(t)
	if _, err := ParseConfig(section("providers:\n- {name: up, base_url: https://x.test/v1, models: [{name: m, hosted: pass}]}\n")); err == nil {
		t.Error("mode guarded takes hosted: pass")
	}
}
