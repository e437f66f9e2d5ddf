// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/telemetry"
	"agentrun/telemetry/mask"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
)

// passing is a request of mode transparent: it goes on as it came, but for the key, the model's name where that is
// an alias, and a limit of tokens above the operator's.
type passing struct {
	dialect *dialect
	target  *target
	method  string // of Gemini: generateContent and others
	model   string // as it was asked for
	body    telemetry.Plaintext[[]byte]
	size    int
	stream  bool
	free    bool  // nothing is generated: tokens are counted
	kept    bool  // a part of the prompt is at the provider already, of a length that nobody knows here
	most    int64 // output tokens, of all replies that are asked for
	files   files
	said    telemetry.Plaintext[jsontext.Value]
	edits   []edit
}

// edit puts text in the place of body[from:to].
type edit struct {
	from, to int
	text     string
}

// opens answers the calls of a dialect of which there is no guarded mode.
func (g *Gateway) opens(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, e := g.body(w, r)
		g.open(w, r, dialectOf(name), body, e)
	}
}

// open answers one, of which reading may have failed already.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request, d *dialect, body []byte, e *gate.Error) {
	var p *passing
	if e == nil {
		p, e = g.passing(d, r, body)
	}
	if e != nil {
		g.turnAway(w, r, "llm", d, e)
		return
	}
	g.pass(w, r, p)
}

// others are where brokers (OpenRouter, LiteLLM's proxy, Vercel) are told which models to ask if the first fails: with the operator's
// key, and after an error that an agent can make.
var others = []string{"models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "providerOptions.gateway.models"}

// passing reads of a request what the table of its dialect names.
func (g *Gateway) passing(d *dialect, r *http.Request, body []byte) (*passing, *gate.Error) {
	p := &passing{dialect: d, body: telemetry.NewPlaintext(body), size: len(body), free: strings.HasSuffix(r.URL.Path, "/count_tokens")}
	want := slices.Concat([]string{"model", "stream", "background", "tools", "plugins", d.said}, d.limits, d.times, d.keeps, others)
	found, err := members(body, want)
	switch {
	case errors.Is(err, errTwice):
		return nil, refuse(gate.CodeBadRequest, "the body names the model, a limit, the tools or the messages twice, or in two spellings", "name each once")
	case err != nil:
		return nil, refuse(gate.CodeBadRequest, "the body isn't a JSON object", "send one")
	}
	if e := p.modelOf(g, r, found["model"]); e != nil {
		return nil, e
	}
	if raw := string(found["background"].raw); raw != "" && raw != "false" && raw != "null" { // "true" and 1 are true to some
		// The reply would be made after this call's end, and be nobody's to count.
		return nil, badArguments("background must be false: a reply is counted while it comes")
	}
	for _, name := range others {
		if v := found[name].raw; len(v) > 0 && v.Kind() != 'n' {
			return nil, badArguments("%s names models beside the one that the operator has a price for", name)
		}
	}
	if e := p.beside(g, found); e != nil {
		return nil, e
	}
	if d.name != dialectGemini {
		p.stream = string(found["stream"].raw) == "true"
	}
	if e := p.bound(found); e != nil {
		return nil, e
	}
	for _, name := range d.keeps {
		p.kept = p.kept || len(found[name].raw) > 0 && found[name].raw.Kind() != 'n'
	}
	return p, p.listen(body, found[d.said].raw)
}

// beside refuses models that a tool of the provider's or a plugin of OpenRouter's asks by its own settings (an advisor, a router): with the
// operator's key, and at a price that isn't the one of the model which is asked for. One of the same line of the configuration has that price.
func (p *passing) beside(g *Gateway, found map[string]member) (e *gate.Error) {
	look := func(settings jsontext.Value) {
		eachString(settings, func(name string, quoted jsontext.Value) {
			text, _ := jsontext.AppendUnquote(nil, quoted)
			if t, _ := g.find(p.dialect.name, string(text)); strings.Contains(strings.ToLower(name), "model") && t != p.target {
				e = badArguments("tools or plugins have %.64q ask a model beside the one that the operator has a price for", name)
			}
		})
	}
	eachElement(found["tools"].raw, func(tool jsontext.Value) {
		if p.dialect.hosts(tool) {
			look(tool)
		}
	})
	look(found["plugins"].raw)
	return e
}

// listen looks at the conversation: at how much of it is images and files, and at what the operator refuses.
func (p *passing) listen(body []byte, said jsontext.Value) *gate.Error {
	p.said = telemetry.NewPlaintext(said)
	eachString(said, func(name string, quoted jsontext.Value) {
		p.files.look(name, quoted)
		p.kept = p.kept || sameName(name, "file_id") || sameName(name, "file_uri")
	})
	if p.target.model.Hosted != hostedRefuse {
		return nil
	}
	what := p.dialect.hosted(body, said)
	if strings.HasSuffix(p.target.upstream(p.model), ":online") && !slices.Contains(p.target.model.names(), p.model) {
		what = "the model's :online" // of OpenRouter, behind the name of any model
	}
	if what != "" {
		return refuse(gate.CodeBadArguments, what+" has the provider search, fetch or run something, which the operator refuses for this model",
			"leave it out; use your own tools")
	}
	return nil
}

// modelOf finds the model: in the body, or for Gemini in the path, which also says what is to be done.
func (p *passing) modelOf(g *Gateway, r *http.Request, m member) (e *gate.Error) {
	if p.dialect.name == dialectGemini {
		p.model, p.method, _ = strings.Cut(r.PathValue("call"), ":")
		switch p.method {
		case "generateContent":
		case "streamGenerateContent":
			if p.stream = r.URL.Query().Get("alt") == "sse"; !p.stream {
				return badArguments("streamGenerateContent is passed on with ?alt=sse only")
			}
		case "countTokens":
			p.free = true
		default:
			return refuse(gate.CodeNotFound, "there is no such method", "generateContent, streamGenerateContent?alt=sse, countTokens")
		}
	} else if name, ok := m.text(); ok {
		p.model = name
	} else {
		return badArguments("model is missing")
	}
	p.target, e = g.find(p.dialect.name, p.model)
	if up := ""; e == nil && p.dialect.name != dialectGemini {
		if up = p.target.upstream(p.model); up != p.model {
			quoted, _ := json.Marshal(up) // a string has a form
			p.edits = append(p.edits, edit{m.at, m.at + len(m.raw), string(quoted)})
		}
	}
	return e
}

// most replies at once that are asked for: each may be as long as the limit says.
const mostTimes = 128

// bound takes the smaller of what was asked and what the model may, and writes it over a larger one: the budget is
// asked for that much. Where nothing was asked nothing is put in; a reply that goes far beyond is ended (meter).
func (p *passing) bound(found map[string]member) *gate.Error {
	for _, name := range slices.Concat(p.dialect.limits, p.dialect.times) {
		// Google reads "128" and 1e2 as numbers too, and so do others: nothing would be counted of what they answer.
		if m := found[name]; len(m.raw) > 0 && m.raw.Kind() != 'n' && string(m.raw) != "-1" && m.number() < 0 {
			return badArguments("%s must be a whole number in plain digits, at most %d", name, maxSaid)
		}
	}
	p.most = 0
	for _, name := range p.dialect.limits { // of two, which the provider takes is its secret
		m := found[name]
		n := m.number()
		if n > p.target.model.MaxTokens {
			p.edits = append(p.edits, edit{m.at, m.at + len(m.raw), strconv.FormatInt(p.target.model.MaxTokens, 10)})
		}
		if len(m.raw) > 0 && m.raw.Kind() != 'n' && n <= 0 { // it asks for no limit
			n = p.target.model.MaxTokens
		}
		p.most = max(p.most, n)
	}
	p.most = min(cmp.Or(p.most, p.target.model.MaxTokens), p.target.model.MaxTokens)
	for _, name := range p.dialect.times {
		switch n := found[name].number(); {
		case n > mostTimes:
			return badArguments("%s must be at most %d", name, mostTimes)
		case n > 1:
			p.most *= n
		}
	}
	return nil
}

// bytes are what goes up.
func (p *passing) bytes() []byte {
	body := p.body.Reveal()
	if len(p.edits) == 0 {
		return body
	}
	slices.SortFunc(p.edits, func(a, b edit) int { return a.from - b.from })
	var out []byte
	at := 0
	for _, e := range p.edits {
		out = append(append(out, body[at:e.from]...), e.text...)
		at = e.to
	}
	return append(out, body[at:]...)
}

// path is the provider's, with what of the query it may get: the agent's own key isn't of it.
func (p *passing) path(query url.Values) string {
	path := p.dialect.path
	switch {
	case p.dialect.name == dialectGemini:
		path += url.PathEscape(p.target.upstream(p.model)) + ":" + p.method
	case p.free:
		path += "/count_tokens"
	}
	kept := url.Values{}
	if p.dialect.name == dialectGemini && p.stream { // any other form of a reply couldn't be counted
		kept.Set("alt", "sse")
	}
	for _, name := range []string{"api-version", "beta"} {
		if v, ok := query[name]; ok {
			kept[name] = v[:1]
		}
	}
	if len(kept) > 0 {
		path += "?" + kept.Encode()
	}
	return path
}

// args are what policies, operators and the record have of a call: its text by length and digest.
func (p *passing) args() []byte {
	sum := sha256.Sum256(p.body.Reveal())
	b, _ := json.Marshal(struct { // names in the order of RFC 8785
		Bytes   int    `json:"bytes"`
		Dialect string `json:"dialect"`
		Digest  string `json:"digest"`
		Model   string `json:"model"`
		Stream  bool   `json:"stream"`
	}{p.size, p.dialect.name, hex.EncodeToString(sum[:]), p.model, p.stream})
	return b
}

// pass makes the call. The permit is asked for what the request may cost, in bytes upwards but for images and
// files, and ended once, whatever happens.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, p *passing) {
	t, up, limit := p.target, p.bytes(), p.target.provider.Timeout
	if p.stream {
		limit = gate.Unlimited // it lives as long as it flows
	}
	input := inputTokens(p.size, p.files.size) + p.files.short
	if p.free {
		input, p.most = 0, 0
	}
	ask := gate.Call{Tool: "llm", Estimate: t.model.cost(input, p.most), Tokens: input + p.most, Timeout: limit}
	if t.model.Boundary == boundaryMark {
		ask.Flags = g.marked(p)
	}
	permit, e := g.enter(r, p.dialect.api(), p.args(), ask)
	if e != nil {
		writeErrorIn(w, p.dialect, e)
		return
	}
	c := newCall(g, t, permit, len(up), p.most, limit)
	c.hide(mask.Spellings(t.key)...) // its reply is JSON that nobody reads here
	c.flags = []string{"dialect_" + p.dialect.name}
	c.tell()
	c.input, c.open, c.passed, c.free, c.whole = input, true, true, p.free, !p.stream
	c.kept, c.media = p.kept, p.files.size
	// nobody is left to be told
	defer func() { _ = c.end(refuse(gate.CodeToolFailed, "the call was given up", "try again")) }()
	relay := &relay{call: c, dialect: p.dialect, w: w, control: http.NewResponseController(w), counts: map[string]int64{}}
	if e := relay.run(p, r, up); e != nil {
		_ = c.end(e) // e stays the reason
		g.o.Log.Warn("llm call", "model", t.model.Name, "code", e.Code, "cause", gate.CauseOf(e.Cause))
		relay.fail(e)
	}
}

// mediaToken is how many bytes of an image or a file count as a token: Anthropic's, Google's and OpenAI's own
// rules give a picture of a screen, some hundred KB, 1,500 to 5,000.
const mediaToken = 64

// marked are the flags of what the request says. What was looked at before is known by its digest: an agent sends
// its whole conversation with each step, and only the end of it is new.
func (g *Gateway) marked(p *passing) (flags []string) {
	eachElement(p.said.Reveal(), func(e jsontext.Value) {
		key := sha256.Sum256(e)
		g.mu.Lock()
		known, ok := g.looked[key]
		g.mu.Unlock()
		if !ok {
			known = p.dialect.suspicions(e)
			g.mu.Lock()
			if len(g.looked) >= mostLooked {
				clear(g.looked)
			}
			g.looked[key] = known
			g.mu.Unlock()
		}
		flags = boundary.Merge(flags, known)
	})
	return flags
}

const mostLooked = 16 << 10 // elements of conversations; 32 bytes and little more each

// relay carries a reply of mode transparent to the agent.
type relay struct {
	*call
	dialect *dialect
	w       http.ResponseWriter
	control *http.ResponseController
	started bool
	counts  map[string]int64 // usage so far: each number is the largest that was said
}

// run sends the request and passes the reply on. An error means that the agent hasn't had its end.
func (x *relay) run(p *passing, r *http.Request, up []byte) *gate.Error {
	if e := x.meter(); e != nil { // the budgets hear of a call before it goes out
		return e
	}
	idle := x.target.provider.Idle
	if !p.stream { // its first byte is its last
		idle = x.target.provider.Timeout
	}
	h := http.Header{}
	copyHeaders(h, r.Header, requestHeaders)
	resp, progress, err := x.ask(p.path(r.URL.Query()), up, h, p.dialect.header, idle)
	if err != nil {
		return failure(x.ctx, err)
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400: // it would take the key to elsewhere
		return refusedBy(resp.StatusCode)
	case resp.StatusCode >= 400, resp.StatusCode == http.StatusOK && kind == "application/json":
		return x.whole(resp, progress)
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return x.events(resp, progress)
	}
	return failure(x.ctx, errForm)
}

// whole passes on a reply in one piece, or a provider's refusal, which costs nothing.
func (x *relay) whole(resp *http.Response, progress func()) *gate.Error {
	body, err := x.readAll(resp.Body, progress, x.gateway.o.Config.Limits.Reply)
	if err != nil {
		return failure(x.ctx, err)
	}
	var failed *gate.Error
	if resp.StatusCode == http.StatusOK {
		x.over = true
		if _, e := x.hear(body); e != nil {
			return e
		}
	} else {
		x.free, failed = true, refusedBy(resp.StatusCode)
	}
	if text := x.redact.Text(string(body)); x.redact.Found() {
		body = []byte(text)
	}
	if e := x.settle(failed); e != nil {
		return e
	}
	x.head(resp)
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(resp.StatusCode)
	_, _ = x.w.Write(body) // an agent that went away
	return nil
}

// settle ends the call before its end is told: a reply that isn't on record never looks whole. What the provider
// refused goes on record as that and is passed on all the same, so its error isn't one here.
func (x *relay) settle(failed *gate.Error) *gate.Error {
	u := x.bill()
	if e := x.permit.Spent(x.target.model.price(u), u.Prompt+u.Completion); e != nil {
		return e
	}
	x.flag(x.redact.Found(), boundary.FlagSecret)
	if e := x.end(failed); e != failed {
		return e
	}
	return nil
}

// hear counts one event or whole reply. As in note, usage holds only if nothing was written after it.
func (x *relay) hear(data []byte) (heard, *gate.Error) {
	h := x.dialect.hear(data)
	x.outBytes += h.size
	x.over = x.over || h.ended || h.last
	for name, n := range h.usage {
		x.counts[name] = max(x.counts[name], n)
	}
	said, _ := x.dialect.total(x.counts)
	if plausiblePrompt(said.Prompt, x.said()) {
		x.known = &said
	}
	if _, out := x.dialect.total(h.usage); out {
		x.final = &said
	} else if h.size > 0 {
		x.final = nil
	}
	return h, x.meter()
}

// events passes a stream on, event by event: each is counted and paid for before it is given out. One that says
// why the reply ended waits for what follows, so that the last is given out after the call's end is on record.
func (x *relay) events(resp *http.Response, progress func()) *gate.Error {
	limit := x.gateway.o.Config.Limits.Reply
	in := newLines(resp.Body, limit, progress, &x.received)
	var held []byte
	ended := false // it said so; what follows is usage, by some providers, and a mark of the end, by most
	for {
		if x.ctx.Err() != nil {
			return failure(x.ctx, x.ctx.Err())
		}
		raw, data, err := in.raw(limit)
		if errors.Is(err, io.EOF) && held != nil {
			return x.finish(resp, held, nil)
		}
		if errors.Is(err, io.EOF) {
			err = errShort
		}
		if err != nil {
			return failure(x.ctx, err)
		}
		h := heard{}
		if len(data) > 0 {
			var e *gate.Error
			if h, e = x.hear(data); e != nil {
				return e
			}
		}
		if h.failed {
			return x.finish(resp, append(held, raw...), failure(x.ctx, errSaid))
		}
		if h.last {
			return x.finish(resp, append(held, raw...), nil)
		}
		if e := x.give(resp, held); e != nil {
			return e
		}
		if held, ended = nil, ended || h.ended; ended {
			held = raw
		} else if e := x.give(resp, raw); e != nil {
			return e
		}
	}
}

func (x *relay) finish(resp *http.Response, last []byte, failed *gate.Error) *gate.Error {
	if e := x.settle(failed); e != nil {
		return e
	}
	_ = x.give(resp, last) // an agent that went away
	return nil
}

// give passes whole events on, without the provider's key should one echo it: between two there is always more than a key has.
func (x *relay) give(resp *http.Response, raw []byte) *gate.Error {
	if len(raw) == 0 {
		return nil
	}
	if !x.started {
		x.head(resp)
		x.w.WriteHeader(http.StatusOK)
		x.started = true
	}
	return x.put(x.redact.Text(string(raw)))
}

// put writes and flushes, with the patience of streamSink.
func (x *relay) put(text string) *gate.Error {
	if text == "" {
		return nil
	}
	_ = x.control.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(x.w, text); err != nil {
		return gone()
	}
	if err := x.control.Flush(); err != nil {
		return gone()
	}
	_ = x.control.SetWriteDeadline(time.Time{})
	return nil
}

func (x *relay) head(resp *http.Response) {
	h := x.w.Header()
	copyHeaders(h, resp.Header, replyHeaders)
	for name, values := range h {
		for i, v := range values {
			h[name][i] = x.redact.Text(v)
		}
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// fail tells why there is no reply, or no more of it.
func (x *relay) fail(e *gate.Error) {
	if !x.started {
		writeErrorIn(x.w, x.dialect, e)
		return
	}
	_ = x.put(string(x.dialect.stopped(e))) // an agent that went away
}

// Headers that pass, by their names or, with a dash at the end, by how they begin. All others don't: what says
// who pays, from where or for whom is the operator's (Authorization, OpenAI-Organization, X-Goog-User-Project,
// cookies), and what a next server on the way may take for an order (X-HTTP-Method-Override, Forwarded) nobody's.
var (
	requestHeaders = []string{
		"Accept", "User-Agent", "X-App", "Originator", "Session_id", "Conversation_id", "X-Client-Request-Id", "Http-Referer", "X-Title",
		"Anthropic-Beta", "Anthropic-Version", "Anthropic-Dangerous-Direct-Browser-Access", "Openai-Beta", "X-Goog-Api-Client", "X-Stainless-", "X-Server-Timeout",
	}
	replyHeaders = []string{
		"Content-Type", "Retry-After", "Retry-After-Ms", "X-Should-Retry", "Request-Id", "X-Request-Id", "Openai-Model", "Openai-Processing-Ms", "Openai-Version",
		"Anthropic-Ratelimit-", "X-Ratelimit-", "X-Goog-Request-Id",
	}
)

func copyHeaders(to, from http.Header, passing []string) {
	for name, values := range from {
		if slices.ContainsFunc(passing, func(p string) bool {
			return name == p || strings.HasSuffix(p, "-") && strings.HasPrefix(name, p)
		}) {
			to[name] = slices.Clone(values)
		}
	}
}
