// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Dialects is an upstream with the shapes of Anthropic's Messages, OpenAI's Responses and Google's generateContent,
// each with its own header for the key. Whole replies and streams repeat the request's body, as a text, and say that
// 100 tokens were read, 60 of them from a cache, and 40 written. The model endless streams a word at a time until
// the client goes; other keys than key, and no beta header for Messages, are refused.
func Dialects(key string) http.Handler {
	mux := http.NewServeMux()
	serve := func(pattern, header string, whole func(text string) object, events func(text string) []object) {
		mux.HandleFunc("POST "+pattern, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.TrimPrefix(r.Header.Get(header), "Bearer ") != key || header == "X-Api-Key" && r.Header.Get("Anthropic-Beta") == "" {
				w.WriteHeader(http.StatusUnauthorized)
				respond(w, object{"type": "error", "error": object{"type": "authentication_error", "message": "no such key, or no beta"}})
				return
			}
			var q struct {
				Model  string `json:"model"`
				Stream bool   `json:"stream"`
			}
			if err := json.Unmarshal(body, &q); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			if !q.Stream && !strings.Contains(r.URL.Path, ":stream") {
				respond(w, whole(string(body)))
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			text, endless := string(body), q.Model == "endless" || strings.HasPrefix(r.PathValue("call"), "endless")
			if endless {
				text = strings.Repeat("word ", 20)
			}
			for again := true; again; again = endless && r.Context().Err() == nil {
				for _, e := range events(text) {
					if b, _ := json.Marshal(e); !endless || strings.Contains(string(b), "word") {
						fmt.Fprintf(w, "event: %v\ndata: %s\n\n", e["type"], b)
					}
				}
				w.(http.Flusher).Flush()
			}
		})
	}
	read := object{"input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30, "output_tokens": 40}
	serve("/v1/messages", "X-Api-Key", func(text string) object {
		return object{"type": "message", "role": "assistant", "content": []object{{"type": "text", "text": text}}, "stop_reason": "end_turn", "usage": read}
	}, func(text string) []object {
		return []object{
			{"type": "message_start", "message": object{"usage": read}},
			{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": text}},
			{"type": "message_delta", "delta": object{"stop_reason": "end_turn"}, "usage": object{"output_tokens": 40}}, {"type": "message_stop"},
		}
	})
	used := object{"input_tokens": 100, "input_tokens_details": object{"cached_tokens": 60}, "output_tokens": 40}
	serve("/v1/responses", "Authorization", func(text string) object {
		return object{"object": "response", "status": "completed", "output": []object{{"type": "message", "content": []object{{"type": "output_text", "text": text}}}}, "usage": used}
	}, func(text string) []object {
		return []object{
			{"type": "response.created", "response": object{"status": "in_progress"}}, {"type": "response.output_text.delta", "delta": text},
			{"type": "response.completed", "response": object{"status": "completed", "usage": used}},
		}
	})
	counted := object{"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 30, "thoughtsTokenCount": 10}
	candidate := func(text string) object {
		return object{"type": "x", "candidates": []object{{"content": object{"role": "model", "parts": []object{{"text": text}}}, "finishReason": "STOP"}}, "usageMetadata": counted}
	}
	serve("/v1/models/{call}", "X-Goog-Api-Key", candidate, func(text string) []object { return []object{candidate(text)} })
	return mux
}
