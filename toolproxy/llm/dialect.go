// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
)

// dialect is what has to be known of an API to pass its calls on as they are: where in a JSON text a thing
// stands, as a table. What isn't in it isn't read.
type dialect struct {
	name   string
	path   string // below a provider's base_url; Gemini has the model in it
	header string // that the key goes in; empty: Authorization, as a bearer

	// Of a request: what is said, with its elements' role or type; what bounds a reply's tokens, how many
	// replies are wanted, which multiplies them, and under which name what the provider keeps is said, too.
	said          string
	limits, times []string
	keeps         []string

	// Of a reply and of each event of a stream: what the model wrote, and the name under which it says why it
	// ended; in which objects usage is, and its numbers. All of prompt are added, then all of out; read and
	// written are the parts of prompt that come from the provider's cache and go into it. What all has beyond
	// prompt and out was written too: xAI's models and Google's OpenAI API count thoughts only there.
	wrote             []string
	ended             string
	usage             []string
	prompt, out       []string
	all               string
	fromCache, cached []string
	rounds            string   // within usage, a list with the same numbers of each time that the model was asked
	last              []string // types of the event that ends a stream

	// What a request has the provider do beside answering: members that ask for it; what a tool that the agent runs
	// itself is called, by the beginning of its type, or for Gemini by its member; and under which name, with which
	// beginning, an address to fetch stands in what is said.
	asks, own []string
	fetches   map[string]string
}

// The dialects, by the names that a provider's `dialects` has.
var dialects = []*dialect{
	{
		name: dialectChat, path: "/chat/completions",
		said: "messages", limits: []string{"max_tokens", "max_completion_tokens"}, times: []string{"n"},
		wrote: []string{"choices"}, ended: "finish_reason", usage: []string{"usage"},
		prompt: []string{"prompt_tokens"}, out: []string{"completion_tokens"}, all: "total_tokens", fromCache: []string{"prompt_tokens_details.cached_tokens"},
		// Of OpenAI, OpenRouter, Azure (an address to search at) and Alibaba.
		asks: []string{"web_search_options", "plugins", "data_sources", "enable_search"}, own: []string{"function", "custom"},
		// Addresses stand in an object by OpenAI, by Mistral and vLLM also right here.
		fetches: map[string]string{"url": "http", "file_data": "http", "image_url": "http", "document_url": "http", "video_url": "http", "audio_url": "http", "input_audio": "http"},
	},
	{
		name: dialectMessages, path: "/messages", header: "X-Api-Key",
		said: "messages", limits: []string{"max_tokens"},
		wrote: []string{"delta", "content_block", "content"}, ended: "stop_reason", usage: []string{"message.usage", "usage"},
		prompt: []string{"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}, out: []string{"output_tokens"},
		fromCache: []string{"cache_read_input_tokens"}, cached: []string{"cache_creation_input_tokens"}, rounds: "iterations",
		last: []string{"message_stop"},
		asks: []string{"mcp_servers", "container", "plugins"}, own: []string{"custom", "bash_", "text_editor_", "computer_", "memory_"}, fetches: map[string]string{"type": "url"},
	},
	{
		name: dialectResponses, path: "/responses",
		said: "input", limits: []string{"max_output_tokens"}, keeps: []string{"previous_response_id", "conversation"},
		wrote: []string{"delta", "output"}, usage: []string{"response.usage", "usage"},
		prompt: []string{"input_tokens"}, out: []string{"output_tokens"}, all: "total_tokens", fromCache: []string{"input_tokens_details.cached_tokens"},
		last: []string{"response.completed", "response.incomplete", "response.failed"},
		asks: []string{"prompt", "plugins"}, own: []string{"function", "custom", "local_shell", "apply_patch", "computer"},
		fetches: map[string]string{"image_url": "http", "file_url": "http", "file_data": "http", "video_url": "http", "audio_url": "http", "input_audio": "http"},
	},
	{
		name: dialectGemini, path: "/models/", header: "X-Goog-Api-Key",
		said: "contents", limits: []string{"generationConfig.maxOutputTokens"}, times: []string{"generationConfig.candidateCount"}, keeps: []string{"cachedContent"},
		wrote: []string{"candidates"}, ended: "finishReason", usage: []string{"usageMetadata"},
		prompt: []string{"promptTokenCount", "toolUsePromptTokenCount"}, out: []string{"candidatesTokenCount", "thoughtsTokenCount"},
		all: "totalTokenCount", fromCache: []string{"cachedContentTokenCount"},
		own: []string{"functionDeclarations", "function_declarations"}, fetches: map[string]string{"fileUri": ""},
	},
}

const (
	dialectChat      = "chat"
	dialectMessages  = "messages"
	dialectResponses = "responses"
	dialectGemini    = "gemini"
)

// dialectOf returns the dialect of this name; nil: there is none.
func dialectOf(name string) *dialect {
	i := slices.IndexFunc(dialects, func(d *dialect) bool { return d.name == name })
	if i < 0 {
		return nil
	}
	return dialects[i]
}

// embedded stands for the route of embeddings, which has errors as chat does.
var embedded = &dialect{name: kindEmbeddings}

// api is the route that a call is decided by.
func (d *dialect) api() string {
	switch d.name {
	case dialectChat, kindEmbeddings:
		return "/internal/llm/" + d.name
	case dialectGemini:
		return "/v1beta/models"
	}
	return "/v1" + d.path
}

// heard is what is read of one event or whole reply.
type heard struct {
	size   int // bytes that the model wrote, as they stand in JSON
	ended  bool
	last   bool
	failed bool
	usage  map[string]int64
}

// hear reads one. What is no JSON object counts as written, all of it: its provider charges for something.
func (d *dialect) hear(data []byte) (h heard) {
	if string(data) == "[DONE]" {
		return heard{last: true}
	}
	found, err := members(data, d.reads())
	if found == nil && err != nil {
		return heard{size: len(data)}
	}
	for _, name := range d.wrote {
		eachString(found[name].raw, func(name string, quoted jsontext.Value) {
			switch {
			case d.ended != "" && name == d.ended:
				h.ended = true
			case slices.Contains(unwritten, name):
			case isMedia(name, quoted):
				h.size += len(quoted) / mediaToken
			default:
				h.size += len(quoted) - 2
			}
		})
	}
	kind, _ := found["type"].text()
	h.failed = kind == "error" || kind == "response.failed" || len(found["error"].raw) > 0 && found["error"].raw.Kind() != 'n'
	h.last = h.failed || slices.Contains(d.last, kind)
	h.usage = d.counts(found)
	return h
}

// unwritten are names of strings that no model wrote: what an object is, and what a provider seals for itself.
var unwritten = []string{"type", "role", "id", "index", "encrypted_content", "signature", "thoughtSignature"}

// reads are the paths that hear looks for.
func (d *dialect) reads() []string {
	paths := append([]string{"type", "error"}, d.wrote...)
	for _, at := range d.usage {
		for _, name := range d.numbers() {
			paths = append(paths, at+"."+name)
		}
		if d.rounds != "" {
			paths = append(paths, at+"."+d.rounds)
		}
	}
	return paths
}

// numbers are the names of usage's.
func (d *dialect) numbers() []string {
	names := slices.Concat(d.prompt, d.out, d.fromCache, d.cached)
	if d.all != "" {
		names = append(names, d.all)
	}
	return names
}

// counts are the numbers of usage, by their names; nil: there are none. Of rounds the sum counts, if it is more: Anthropic leaves out
// of the numbers above them what a round took that shortened the conversation, or that asked another model.
func (d *dialect) counts(found map[string]member) (all map[string]int64) {
	note := func(name string, n int64) {
		if all == nil {
			all = map[string]int64{}
		}
		all[name] = max(all[name], n)
	}
	for path, m := range found {
		for _, at := range d.usage {
			name, ok := strings.CutPrefix(path, at+".")
			if n := m.number(); ok && n >= 0 {
				note(name, n)
			}
			if ok && name == d.rounds {
				for name, n := range d.sum(m.raw) {
					note(name, n)
				}
			}
		}
	}
	return all
}

// sum adds the numbers of a list of usages.
func (d *dialect) sum(list jsontext.Value) map[string]int64 {
	all := map[string]int64{}
	eachElement(list, func(one jsontext.Value) {
		found, _ := members(one, d.numbers()) // what is no object says nothing
		for name, m := range found {
			all[name] += max(m.number(), 0)
		}
	})
	return all
}

// total is what usage says in all, and whether it says how much was written.
func (d *dialect) total(counts map[string]int64) (u usage, out bool) {
	for _, sum := range []struct {
		names []string
		to    *int64
	}{{d.prompt, &u.Prompt}, {d.out, &u.Completion}, {d.fromCache, &u.fromCache}, {d.cached, &u.cached}} {
		for _, name := range sum.names {
			n, ok := counts[name]
			*sum.to += n
			out = out || ok && sum.to == &u.Completion
		}
	}
	u.Completion = max(u.Completion, counts[d.all]-u.Prompt)
	return u, out
}

// suspicions are the flags of what users and tools say in a request (M-16). What the application says to the
// model, and what the model said before, is not looked at: that is how a coding agent is made to work.
func (d *dialect) suspicions(said jsontext.Value) (flags []string) {
	look := func(name string, quoted jsontext.Value) {
		if !isMedia(name, quoted) {
			text, _ := jsontext.AppendUnquote(nil, quoted) // half a letter comes as U+FFFD
			flags = boundary.Merge(flags, boundary.Inspect(string(text)))
		}
	}
	eachElement(said, func(e jsontext.Value) {
		found, err := members(e, []string{"role", "type"})
		role, _ := found["role"].text()
		kind, _ := found["type"].text()
		switch {
		case errors.Is(err, errTwice), role == "user", role == "tool", role == "function", strings.HasSuffix(kind, "_output"), role == "" && kind == "":
			eachString(e, look)
		}
	})
	return flags
}

// hosted names what a request has the provider search, fetch or run for the agent: past the egress rules, which see
// none of it (M-8). Empty: nothing that is known here.
func (d *dialect) hosted(body []byte, said jsontext.Value) (what string) {
	found, err := members(body, append([]string{"tools"}, d.asks...))
	if err != nil {
		return "a member that is there twice"
	}
	for _, name := range d.asks {
		if v := found[name].raw; len(v) > 0 && v.Kind() != 'n' && v.Kind() != 'f' {
			what = name
		}
	}
	look := func(tool jsontext.Value) {
		if d.hosts(tool) {
			what = "a tool of the provider's"
		}
	}
	eachElement(found["tools"].raw, look)
	eachElement(said, func(e jsontext.Value) { // Responses has tools that were found on the way in the conversation
		found, err := members(e, []string{"tools"})
		if eachElement(found["tools"].raw, look); errors.Is(err, errTwice) {
			what = "a member that is there twice"
		}
	})
	eachString(said, func(name string, quoted jsontext.Value) {
		for place, begin := range d.fetches {
			if !sameName(name, place) {
				continue
			}
			// As the provider reads it: JSON has several ways to write a letter, and what stands before an address is dropped.
			text, _ := jsontext.AppendUnquote(nil, quoted)
			text = bytes.TrimLeftFunc(text, func(r rune) bool { return r <= ' ' })
			if bytes.EqualFold(text[:min(len(text), len(begin))], []byte(begin)) {
				what = "an address to fetch"
			}
		}
	})
	return what
}

// hosts tells of a tool that the provider runs, not the agent.
func (d *dialect) hosts(tool jsontext.Value) bool {
	kinds := namesOf(tool)
	if d.name != dialectGemini {
		found, err := members(tool, []string{"type"})
		kind, _ := found["type"].text()
		if kinds = []string{kind}; errors.Is(err, errTwice) {
			kinds = []string{"two"} // which of them the provider takes is its secret
		}
	}
	return slices.ContainsFunc(kinds, func(kind string) bool {
		return kind != "" && !slices.ContainsFunc(d.own, func(own string) bool { return strings.HasPrefix(kind, own) })
	})
}

// isMedia tells of a string that is an image or another file, by the name that the dialects give one and by
// having the letters of base64 only. No provider counts those by their bytes.
func isMedia(name string, quoted jsontext.Value) bool {
	body := mediaBody(name, quoted)
	return len(body) >= 256 && !bytes.ContainsFunc(body, func(r rune) bool {
		return r >= utf8.RuneSelf || !strings.ContainsRune(base64Letters, r)
	})
}

// mediaBody is what may be a file in base64; nil: nothing by that name is one.
func mediaBody(name string, quoted jsontext.Value) []byte {
	switch name {
	case "data", "url", "image_url", "file_data":
	default:
		return nil
	}
	body := quoted[1 : len(quoted)-1]
	if at := bytes.Index(body[:min(len(body), 128)], []byte(";base64,")); at >= 0 {
		body = body[at+len(";base64,"):]
	}
	return body
}

// filesBegin is how base64 begins of PNG, JPEG, GIF, WebP and PDF.
var filesBegin = []string{"iVBOR", "/9j/", "R0lGOD", "UklGR", "JVBER"}

// files are those of what is said: their bytes, and the tokens that leastFile has beyond what is counted by bytes.
type files struct {
	size  int
	short int64
}

func (f *files) look(name string, quoted jsontext.Value) {
	counted := tokensOf(len(quoted))
	switch {
	case isMedia(name, quoted):
		f.size += len(quoted)
		counted = int64(len(quoted)) / mediaToken
	case !isSmallFile(name, quoted):
		return
	}
	f.short += max(leastFile-counted, 0)
}

// isSmallFile tells of a file that is too short, or written too loosely, for isMedia.
func isSmallFile(name string, quoted jsontext.Value) bool {
	body := mediaBody(name, quoted)
	if body == nil {
		return false
	}
	// As the provider reads it: letters in other words, and white space before them.
	text, _ := jsontext.AppendUnquote(nil, slices.Concat([]byte{'"'}, body[:min(len(body), 128)], []byte{'"'}))
	text = bytes.TrimLeftFunc(text, func(r rune) bool { return r <= ' ' })
	return slices.ContainsFunc(filesBegin, func(begin string) bool { return bytes.HasPrefix(text, []byte(begin)) })
}

// filesOf are those of a chat's request.
func filesOf(up []byte) (f files) {
	found, _ := members(up, []string{"messages"}) // we wrote it
	eachString(found["messages"].raw, f.look)
	return f
}

const base64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"

// errorIn is an error in the form of a dialect, as the body of a reply (M-13). Google's clients want a number as
// code, and the others' a type above it; our own code, message and next step are in each.
func (d *dialect) errorIn(e *gate.Error) any {
	if d.name != dialectGemini {
		return bodyOf(e)
	}
	type told struct {
		Code    int    `json:"code"`
		Status  string `json:"status"`
		Message string `json:"message"`
		Reason  string `json:"reason"`
		Next    string `json:"next"`
	}
	code := gate.Status(e.Code)
	return struct {
		OK    bool `json:"ok"`
		Error told `json:"error"`
	}{false, told{code, googleStatus(code), e.Message, string(e.Code), e.Next}}
}

func googleStatus(code int) string {
	switch code {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return "INVALID_ARGUMENT"
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusPaymentRequired, http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusServiceUnavailable:
		return "UNAVAILABLE"
	case http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	case http.StatusBadGateway:
		return "INTERNAL"
	}
	return "PERMISSION_DENIED"
}

// stopped is the event that ends a stream for an error of ours, in the form in which the dialect's clients
// report one and don't take what came for the whole. OpenAI's Responses have a failed response for that; its
// code for money that is used up is the one that Codex doesn't try again after.
func (d *dialect) stopped(e *gate.Error) []byte {
	var event string
	var v any
	switch d.name {
	case dialectMessages:
		event, v = "event: error\n", d.errorIn(e)
	case dialectResponses:
		code := string(e.Code)
		if e.Code == gate.CodeCost || e.Code == gate.CodeQuota {
			code = "insufficient_quota"
		}
		event = "event: response.failed\n"
		v = map[string]any{"type": "response.failed", "response": map[string]any{
			"id": "resp_agentrun", "object": "response", "status": "failed", "output": []any{},
			"error": map[string]string{"code": code, "message": e.Message + "; " + e.Next, "reason": string(e.Code)},
		}}
	default:
		v = d.errorIn(e)
	}
	b, err := json.Marshal(v)
	if err != nil { // nothing here holds what JSON can't say
		b = []byte(`{"error":{}}`)
	}
	return slices.Concat([]byte(event+"data: "), b, []byte("\n\n"))
}
