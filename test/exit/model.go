// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Thought is what Model thinks and no agent may ever see (M-17).
const Thought = "thought-that-must-not-be-seen"

// Model is an upstream with the OpenAI shape of chat completions and embeddings, streaming and not. It wants the bearer
// token key. What it does depends on the name of the model asked for:
//
//	plain      answers "the answer is 42"; usage 10 and 5 tokens
//	endless    streams a word at a time until the client goes, and never says what it cost
//	reasoning  adds reasoning fields of several dialects to its answer
//	echo-key   status 401, the credentials that came in its error
//	hang       never answers
//	nonsense   status 200 and HTML
//	broken     ends a stream in the middle of an event
//	swell      status 200 and a list of two million elements that say nothing
//	early      streams, and says what it cost before its answer of 900 bytes
//	drip       sends a comment now and then, and never an answer
func Model(key string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			http.Error(w, `{"error":{"message":"no such key","type":"invalid_request_error"}}`, http.StatusUnauthorized)
			return
		}
		var q struct {
			Model  string `json:"model"`
			Stream bool   `json:"stream"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, `{"error":{"message":"not JSON"}}`, http.StatusBadRequest)
			return
		}
		if q.Stream && !slices.Contains([]string{"nonsense", "echo-key", "hang", "swell"}, q.Model) || slices.Contains([]string{"endless", "broken", "early", "drip"}, q.Model) {
			stream(w, r, q.Model)
			return
		}
		answer(w, r, q.Model)
	})
	mux.HandleFunc("POST /v1/embeddings", func(w http.ResponseWriter, r *http.Request) {
		respond(w, map[string]any{
			"object": "list", "model": "embed", "usage": object{"prompt_tokens": 4, "total_tokens": 4},
			"data": []object{{"object": "embedding", "index": 0, "embedding": []float64{0.25, -0.5, 0.75}}},
		})
	})
	return mux
}

type object = map[string]any

func respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func answer(w http.ResponseWriter, r *http.Request, model string) {
	message := object{"role": "assistant", "content": "the answer is 42"}
	switch model {
	case "hang":
		<-r.Context().Done()
		return
	case "swell":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[`+strings.Repeat("{},", 2_000_000)+`{}]}`)
		return
	case "nonsense":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>welcome to the captive portal</html>")
		return
	case "echo-key":
		w.WriteHeader(http.StatusUnauthorized)
		respond(w, object{"error": object{"message": "key " + r.Header.Get("Authorization") + " is not valid", "type": "auth"}})
		return
	case "reasoning":
		message["reasoning_content"], message["reasoning"], message["thinking"] = Thought, object{"text": Thought}, Thought
		message["content"] = "<think>" + Thought + "</think>the answer is 42"
	}
	respond(w, object{
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
		"choices": []object{{"index": 0, "message": message, "finish_reason": "stop"}},
		"usage":   object{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
	})
}

func stream(w http.ResponseWriter, r *http.Request, model string) {
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(v any) bool {
		b, _ := json.Marshal(v)
		_, err := fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
		return err == nil && r.Context().Err() == nil
	}
	delta := func(d object) bool {
		return event(object{
			"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model,
			"choices": []object{{"index": 0, "delta": d, "finish_reason": nil}},
		})
	}
	switch model {
	case "endless":
		for delta(object{"content": strings.Repeat("word ", 20)}) {
		}
		return
	case "drip":
		for r.Context().Err() == nil {
			fmt.Fprint(w, ": still there\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
		return
	case "early":
		event(object{"choices": []object{}, "usage": object{"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}})
		for range 9 {
			delta(object{"content": strings.Repeat("x", 100)})
		}
		event(object{"choices": []object{{"index": 0, "delta": object{}, "finish_reason": "stop"}}})
		fmt.Fprint(w, "data: [DONE]\n\n")
		return
	case "broken":
		delta(object{"content": "the answer"})
		fmt.Fprint(w, `data: {"id":"chatcmpl-1","choices":[{"delta":{"content":"cut o`)
		return
	case "reasoning":
		delta(object{"reasoning_content": Thought, "reasoning": Thought})
		// Apart, so that whoever looks at one event at a time doesn't find the marks.
		for _, part := range []string{"<th", "ink>", Thought, "</thi", "nk>"} {
			delta(object{"content": part})
		}
	}
	for _, part := range []string{"the ", "answer ", "is ", "42"} {
		delta(object{"content": part})
	}
	event(object{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model,
		"choices": []object{{"index": 0, "delta": object{}, "finish_reason": "stop"}},
	})
	event(object{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": []object{},
		"usage": object{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
	})
	fmt.Fprint(w, "data: [DONE]\n\n")
}
