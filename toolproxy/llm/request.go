// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// chatRequest has the fields that pass. What isn't here is refused by name rather than dropped: a client that
// relies on it should hear of it, and a provider's next extension (hosted search, remote tools) must not pass
// by being unknown.
type chatRequest struct {
	sampling
	Model         string                 `json:"model"`
	Messages      unsaid[few[message]]   `json:"messages"`
	Stream        bool                   `json:"stream"`
	StreamOptions *streamOptions         `json:"stream_options"`
	MaxTokens     *int64                 `json:"max_tokens"`
	MaxCompletion *int64                 `json:"max_completion_tokens"`
	N             *int64                 `json:"n"`
	Stop          unsaid[jsontext.Value] `json:"stop"`
	Tools         unsaid[few[toolSpec]]  `json:"tools"`
	ToolChoice    unsaid[jsontext.Value] `json:"tool_choice"`
	Format        unsaid[jsontext.Value] `json:"response_format"`
	Store         *bool                  `json:"store"`
	Logprobs      *bool                  `json:"logprobs"`
	// not passed on: who the agent is, is nothing the agent says
	User     unsaid[string]         `json:"user"`
	Metadata unsaid[jsontext.Value] `json:"metadata"` // not passed on
}

// unsaid is a part of a request that refuses to print (M-18): all that bears an agent's words.
type unsaid[T any] struct{ telemetry.Plaintext[T] }

// UnmarshalJSONFrom reads a T, by the rules that its whole is read by.
func (u *unsaid[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var value T
	if err := json.UnmarshalDecode(dec, &value); err != nil {
		return err
	}
	u.Plaintext = telemetry.NewPlaintext(value)
	return nil
}

// sampling is what is passed on as it came: numbers, and words that are checked.
type sampling struct {
	Temperature *float64 `json:"temperature,omitzero"`
	TopP        *float64 `json:"top_p,omitzero"`
	Presence    *float64 `json:"presence_penalty,omitzero"`
	Frequency   *float64 `json:"frequency_penalty,omitzero"`
	Parallel    *bool    `json:"parallel_tool_calls,omitzero"`
	Seed        *int64   `json:"seed,omitzero"`
	Effort      string   `json:"reasoning_effort,omitzero"`
}

type streamOptions struct {
	Usage       bool  `json:"include_usage"`
	Obfuscation *bool `json:"include_obfuscation"`
}

type message struct {
	Role       string         `json:"role"`
	Content    jsontext.Value `json:"content"`
	Name       string         `json:"name"`
	ToolCalls  few[toolCall]  `json:"tool_calls"`
	ToolCallID string         `json:"tool_call_id"`
	Refusal    *string        `json:"refusal"`
	// Clients send replies back as they got them. These are read and left out.
	Summary      *string        `json:"summary"`
	Audio        jsontext.Value `json:"audio"`
	FunctionCall jsontext.Value `json:"function_call"`
	Annotations  jsontext.Value `json:"annotations"`
}

type toolCall struct {
	Index    *int64       `json:"index,omitzero"`
	ID       string       `json:"id,omitzero"`
	Type     string       `json:"type,omitzero"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name,omitzero"`
	Arguments string `json:"arguments"`
}

type toolSpec struct {
	Type     string       `json:"type"`
	Function functionSpec `json:"function"`
}

type functionSpec struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitzero"`
	Parameters  jsontext.Value `json:"parameters,omitzero"`
	Strict      *bool          `json:"strict,omitzero"`
}

const (
	maxTools     = 128
	maxParts     = 64
	maxToolCalls = 64
	maxID        = 128
)

// body reads one of JSON, and not more of it than is allowed.
func (g *Gateway) body(w http.ResponseWriter, r *http.Request) ([]byte, *gate.Error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, refuse(gate.CodeBadRequest, "the body is not declared as JSON", "send Content-Type: application/json")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, refuse(gate.CodeBadRequest, "the body is compressed", "send it as it is")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.o.Config.Limits.Body))
	if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, refuse(gate.CodeTooLarge, fmt.Sprintf("the body has more than %d bytes", long.Limit),
			"send less: shorten or summarise the conversation")
	}
	if err != nil {
		return nil, refuse(gate.CodeBadRequest, "the body ended early", "send it again")
	}
	return body, nil
}

// decode reads a request with one meaning: known names, each once, in UTF-8. What the library says of a mistake is
// not passed on: it quotes.
func decode(body []byte, into any) *gate.Error {
	err := json.Unmarshal(body, into, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	if errors.Is(err, errMany) {
		return refuse(gate.CodeTooLarge, errMany.Error()+" is not read", "leave out or summarise the oldest messages")
	}
	where := ""
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok && semantic.JSONPointer != "" {
		at := string(semantic.JSONPointer)
		if slices.Contains(knownFields, strings.TrimPrefix(at, "/")) && errors.Is(err, json.ErrUnknownName) {
			return refuse(gate.CodeBadRequest, strings.TrimPrefix(at, "/")+" is known and not passed on to a model of mode guarded",
				"leave it out, or have the operator write mode: transparent")
		}
		where = fmt.Sprintf(" at %.100q", at)
	}
	e := refuse(gate.CodeBadRequest, "the body isn't the JSON that is read here"+where,
		"send the fields of OpenAI's API that ask for text or function calls; names count exactly and come once")
	e.Cause = err
	return e
}

// knownFields are OpenAI's and other providers' that mode guarded doesn't pass on: they would have a provider keep,
// search or run something, make a reply of another form, or let one run's calls be known from another's.
var knownFields = []string{
	"audio", "enable_thinking", "extra_body", "function_call", "functions", "logit_bias", "modalities", "moderation", "plugins", "prediction",
	"prompt_cache_key", "prompt_cache_retention", "provider", "reasoning", "safety_identifier", "service_tier", "thinking", "top_k",
	"top_logprobs", "transforms", "verbosity", "web_search_options",
}

func badArguments(format string, args ...any) *gate.Error {
	return refuse(gate.CodeBadArguments, fmt.Sprintf(format, args...), "correct the request")
}

// check refuses what would make a call cost more than one completion, keep something at the provider, or be
// answered in a form that can't be filtered: several choices, storage, probabilities of tokens (they spell
// out words that were withheld).
func (r *chatRequest) check(l Limits) *gate.Error {
	messages, tools := r.Messages.Reveal(), r.Tools.Reveal()
	switch {
	case len(messages) == 0:
		return badArguments("messages is empty")
	case len(messages) > l.Messages:
		return refuse(gate.CodeTooLarge, fmt.Sprintf("there are more than %d messages", l.Messages), "leave out or summarise the oldest")
	case r.N != nil && *r.N != 1:
		return badArguments("n must be 1: one permit is for one completion")
	case r.Store != nil && *r.Store:
		return badArguments("store must be false: nothing is kept at the provider")
	case r.Logprobs != nil && *r.Logprobs:
		return badArguments("logprobs are not given")
	case len(r.Effort) > 16:
		return badArguments("reasoning_effort is no known word")
	case r.MaxTokens != nil && *r.MaxTokens < 1, r.MaxCompletion != nil && *r.MaxCompletion < 1:
		return badArguments("max_tokens must be at least 1")
	case len(tools) > maxTools:
		return badArguments("there are more than %d tools", maxTools)
	}
	for i := range tools {
		if e := tools[i].check(i); e != nil {
			return e
		}
	}
	return nil
}

// offers are the names of the functions that the model may call.
func (r *chatRequest) offers() map[string]bool {
	names := map[string]bool{}
	for _, t := range r.Tools.Reveal() {
		names[t.Function.Name] = true
	}
	return names
}

// check refuses tools that a provider would run itself: they reach the network by the provider's hand, around
// egress (M-8).
func (t *toolSpec) check(i int) *gate.Error {
	switch {
	case t.Type != "function":
		return badArguments("tools[%d] is not of type function; the provider runs no tools for an agent", i)
	case !functionName().MatchString(t.Function.Name):
		return badArguments("tools[%d].function.name must be letters, digits, _ and -, at most 64", i)
	case len(t.Function.Description) > 16<<10:
		return badArguments("tools[%d].function.description is longer than 16 KiB", i)
	case len(t.Function.Parameters) > 0 && t.Function.Parameters.Kind() != '{' && t.Function.Parameters.Kind() != 'n':
		return badArguments("tools[%d].function.parameters is not an object", i)
	}
	return nil
}

var functionName = regexpOnce(`^[A-Za-z0-9_-]{1,64}$`)

// most is the limit of output tokens: the smallest of what was asked and what the model may.
func (r *chatRequest) most(m *Model) int64 {
	most := m.MaxTokens
	for _, asked := range []*int64{r.MaxTokens, r.MaxCompletion} {
		if asked != nil {
			most = min(most, *asked)
		}
	}
	return most
}

// part is one piece of a content.
type part struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitzero"`
	ImageURL *imageURL `json:"image_url,omitzero"`
	Refusal  string    `json:"refusal,omitzero"`
}

type imageURL struct {
	URL    string `json:"url"`
	Detail string `json:"detail,omitzero"`
}

// parts reads a content: a string, a list of parts, or nothing. Only kinds that are known pass, since a
// provider's next kind may well be an address to fetch or a file to read (M-8).
func parts(v jsontext.Value, at string) ([]part, *gate.Error) {
	switch v.Kind() {
	case '"':
		var s string
		if json.Unmarshal(v, &s) != nil {
			return nil, badArguments("%s is malformed", at)
		}
		return []part{{Type: "text", Text: s}}, nil
	case 'n':
		return nil, nil
	case '[':
	default:
		if len(v) == 0 {
			return nil, nil
		}
		return nil, badArguments("%s is neither text nor a list of parts", at)
	}
	var list few[part]
	if json.Unmarshal(v, &list, json.RejectUnknownMembers(true)) != nil || len(list) > maxParts {
		return nil, badArguments("%s has parts that are not read here, or more than %d", at, maxParts)
	}
	for i := range list {
		if e := list[i].check(fmt.Sprintf("%s[%d]", at, i)); e != nil {
			return nil, e
		}
	}
	return list, nil
}

func (p *part) check(at string) *gate.Error {
	switch p.Type {
	case "text", "refusal":
		return nil
	case "image_url":
		if p.ImageURL == nil || !strings.HasPrefix(p.ImageURL.URL, "data:image/") {
			// The provider would fetch an address: a way out for data in its path, past the egress rules.
			return refuse(gate.CodeBadArguments, at+" names an address to fetch", "send the image itself as a data: URL")
		}
		if !slices.Contains([]string{"", "auto", "low", "high"}, p.ImageURL.Detail) {
			return badArguments("%s.detail is no known word", at)
		}
		return nil
	}
	return badArguments("%s is neither text nor an image", at)
}
