// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Script is in the place of a model for coding agents: it has an agent run commands, one after the other, and says
// Last when it has heard what became of each. It speaks Anthropic's Messages, OpenAI's Responses and Chat Completions,
// and Google's generateContent, streaming or not, as far as the agents ask. How far an agent is it tells from the results in
// the conversation, so it keeps no state of one, and any number may ask at once.
type Script struct {
	Commands []string
	Last     string
	Endless  bool // in the place of Last it says a word after the other in Messages and Responses, until the client goes

	mu    sync.Mutex
	keys  map[string]bool
	asked []string
}

// Keys are the credentials that have come, each once.
func (s *Script) Keys() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.keys {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Asked are the paths that were asked for, in order.
func (s *Script) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// turn is what the model does next: it calls a tool or, where name is empty, says text.
type turn struct {
	name, text string
	args       string // JSON
	n          int
	stream     bool
	model      string
	until      context.Context // what it says ends with it; nil: after the text
}

func (t turn) id() string { return fmt.Sprintf("call_%d", t.n) }

// ServeHTTP implements http.Handler.
func (s *Script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	s.mu.Lock()
	if s.keys == nil {
		s.keys = map[string]bool{}
	}
	for _, name := range []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key"} {
		if v := r.Header.Get(name); v != "" {
			s.keys[v] = true
		}
	}
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	var q map[string]any
	_ = json.Unmarshal(text, &q)
	t := s.next(q)
	t.stream, _ = q["stream"].(bool)
	t.model, _ = q["model"].(string)
	if s.Endless && t.text == s.Last {
		t.until = r.Context()
	}
	path := r.URL.Path
	switch {
	case r.Header.Get("Upgrade") != "":
		http.Error(w, "no websockets here", http.StatusUpgradeRequired) // Codex goes on without
	case r.Method == http.MethodGet:
		respond(w, object{"object": "list", "data": []object{}, "models": []object{}})
	case strings.HasSuffix(path, "/count_tokens"):
		respond(w, object{"input_tokens": 100})
	case strings.HasSuffix(path, ":countTokens"):
		respond(w, object{"totalTokens": 100})
	case strings.HasSuffix(path, "/messages"):
		t.messages(w)
	case strings.HasSuffix(path, "/responses"):
		t.responses(w)
	case strings.HasSuffix(path, "/chat/completions"):
		t.chat(w)
	case strings.Contains(path, "enerateContent"):
		t.stream = strings.Contains(path, ":stream")
		t.generate(w)
	default:
		http.NotFound(w, r)
	}
}

// next reads how many results there are. A request without a shell among its tools is a side one, for a title or so.
func (s *Script) next(q map[string]any) turn {
	n := results(q)
	name, schema := shell(q["tools"])
	switch {
	case name == "":
		return turn{text: "fine"}
	case n >= len(s.Commands):
		return turn{text: s.Last, n: n}
	}
	args, _ := json.Marshal(arguments(schema, s.Commands[n]))
	return turn{name: name, args: string(args), n: n}
}

// results counts what tools have answered, in any dialect.
func results(v any) (n int) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			n += results(one)
		}
	case map[string]any:
		kind, _ := v["type"].(string)
		if kind == "tool_result" || strings.HasSuffix(kind, "_call_output") || v["role"] == "tool" || v["functionResponse"] != nil {
			return 1
		}
		for key, one := range v {
			if key != "tools" {
				n += results(one)
			}
		}
	}
	return n
}

var shells = []string{"bash", "shell", "shell_command", "exec_command", "run_shell_command"}

// shell finds the tool that runs commands, with the schema of its arguments.
func shell(v any) (name string, schema map[string]any) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			if name, schema = shell(one); name != "" {
				return name, schema
			}
		}
	case map[string]any:
		if name, _ := v["name"].(string); slices.Contains(shells, strings.ToLower(name)) {
			for _, key := range []string{"input_schema", "parameters", "parametersJsonSchema"} {
				if schema, _ := v[key].(map[string]any); schema != nil {
					return name, schema
				}
			}
		}
		for _, key := range []string{"function", "functionDeclarations"} {
			if name, schema = shell(v[key]); name != "" {
				return name, schema
			}
		}
	}
	return "", nil
}

// arguments are the command, in the form that the schema wants, and something for all else that must be there.
func arguments(schema map[string]any, command string) object {
	properties, _ := schema["properties"].(map[string]any)
	args := object{}
	required, _ := schema["required"].([]any)
	for _, name := range append(required, "command", "cmd") {
		name, _ := name.(string)
		property, ok := properties[name].(map[string]any)
		if !ok {
			continue
		}
		switch property["type"] {
		case "array":
			args[name] = []string{"bash", "-c", command}
		case "boolean":
			args[name] = false
		case "number", "integer":
			args[name] = 60000
		default:
			args[name] = "a step"
			if name == "command" || name == "cmd" {
				args[name] = command
			}
		}
	}
	return args
}

// events writes a stream of server-sent events; those with a type name it.
func events(w http.ResponseWriter, list ...object) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range list {
		b, _ := json.Marshal(e)
		if kind, ok := e["type"].(string); ok {
			fmt.Fprintf(w, "event: %s\n", kind)
		}
		fmt.Fprintf(w, "data: %s\n\n", b)
	}
}

// flow writes how a stream begins, and then the same again and again.
func (t turn) flow(w http.ResponseWriter, again object, begin ...object) {
	events(w, begin...)
	for t.until.Err() == nil {
		events(w, again)
		w.(http.Flusher).Flush()
	}
}

func (t turn) messages(w http.ResponseWriter) {
	usage := object{"input_tokens": 100, "output_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	block := object{"type": "text", "text": t.text}
	empty, delta, reason := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": t.text}, "end_turn"
	if t.name != "" {
		block = object{"type": "tool_use", "id": t.id(), "name": t.name, "input": json.RawMessage(t.args)}
		empty = object{"type": "tool_use", "id": t.id(), "name": t.name, "input": object{}}
		delta, reason = object{"type": "input_json_delta", "partial_json": t.args}, "tool_use"
	}
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": t.model, "content": []object{}, "stop_reason": nil, "stop_sequence": nil, "usage": usage}
	if !t.stream {
		message["content"], message["stop_reason"] = []object{block}, reason
		respond(w, message)
		return
	}
	if t.until != nil {
		t.flow(w, object{"type": "content_block_delta", "index": 0, "delta": delta}, object{"type": "message_start", "message": message},
			object{"type": "content_block_start", "index": 0, "content_block": empty})
		return
	}
	events(w, object{"type": "message_start", "message": message},
		object{"type": "content_block_start", "index": 0, "content_block": empty},
		object{"type": "content_block_delta", "index": 0, "delta": delta},
		object{"type": "content_block_stop", "index": 0},
		object{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": object{"output_tokens": 20}},
		object{"type": "message_stop"})
}

func (t turn) responses(w http.ResponseWriter) {
	item := object{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []object{{"type": "output_text", "text": t.text, "annotations": []object{}}}}
	delta := object{"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": t.text}
	if t.name != "" {
		item = object{"type": "function_call", "id": "fc_1", "call_id": t.id(), "name": t.name, "arguments": t.args, "status": "completed"}
		delta = object{"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": t.args}
	}
	response := object{"id": "resp_1", "object": "response", "created_at": 1, "model": t.model, "status": "completed", "output": []object{item},
		"usage": object{"input_tokens": 100, "input_tokens_details": object{"cached_tokens": 0}, "output_tokens": 20, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 120}}
	if !t.stream {
		respond(w, response)
		return
	}
	begun := object{"id": "resp_1", "object": "response", "created_at": 1, "model": t.model, "status": "in_progress", "output": []object{}}
	added := object{}
	for k, v := range item {
		added[k] = v
	}
	if t.name != "" {
		added["arguments"] = ""
	} else {
		added["content"] = []object{}
	}
	all := []object{
		{"type": "response.created", "response": begun},
		{"type": "response.output_item.added", "output_index": 0, "item": added},
		delta,
		{"type": "response.output_item.done", "output_index": 0, "item": item},
		{"type": "response.completed", "response": response},
	}
	for i := range all {
		all[i]["sequence_number"] = i
	}
	if t.until != nil {
		t.flow(w, delta, all[:2]...)
		return
	}
	events(w, all...)
}

func (t turn) chat(w http.ResponseWriter) {
	message, reason := object{"role": "assistant", "content": t.text}, "stop"
	if t.name != "" {
		call := object{"index": 0, "id": t.id(), "type": "function", "function": object{"name": t.name, "arguments": t.args}}
		message, reason = object{"role": "assistant", "content": nil, "tool_calls": []object{call}}, "tool_calls"
	}
	usage := object{"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
	if !t.stream {
		respond(w, object{"id": "c1", "object": "chat.completion", "created": 1, "model": t.model, "usage": usage,
			"choices": []object{{"index": 0, "message": message, "finish_reason": reason}}})
		return
	}
	chunk := func(choices ...object) object {
		return object{"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": t.model, "choices": choices}
	}
	last := chunk()
	last["choices"], last["usage"] = []object{}, usage
	events(w, chunk(object{"index": 0, "delta": message, "finish_reason": nil}), chunk(object{"index": 0, "delta": object{}, "finish_reason": reason}), last)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (t turn) generate(w http.ResponseWriter) {
	part := object{"text": t.text}
	if t.name != "" {
		part = object{"functionCall": object{"id": t.id(), "name": t.name, "args": json.RawMessage(t.args)}}
	}
	reply := object{
		"candidates":    []object{{"index": 0, "content": object{"role": "model", "parts": []object{part}}, "finishReason": "STOP"}},
		"usageMetadata": object{"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120},
		"modelVersion":  "scripted", "responseId": "r1",
	}
	if t.stream {
		events(w, reply)
		return
	}
	respond(w, reply)
}
