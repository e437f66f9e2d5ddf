// SPDX-License-Identifier: Apache-2.0

// Package llm is the way from a sandbox to language models (M-7, M-15 to M-17, M-19): an http.Handler with
// the bodies of the OpenAI API at /internal/llm/chat, /internal/llm/embeddings, /v1/chat/completions,
// /v1/embeddings and /v1/models, of its Responses at /v1/responses, of Anthropic's Messages at /v1/messages and of
// Google's Gemini API at /v1beta/models, so that clients which take a base URL work as they are.
//
// What it guarantees for each model:
//
//   - No call starts without a permit of gate.Entrance, and each permit is ended exactly once, whatever
//     happens.
//   - What a call costs is reserved before it starts and told while it goes on; a hard stop ends the stream
//     and the upstream's connection in the middle.
//   - The provider's key is put in here and taken out of what comes back, should it be echoed.
//
// And for one of mode guarded:
//
//   - The first and only system message is the operator's. What the agent calls system, developer, user or
//     tool goes up as data between delimiters of this run (package boundary), unless the operator writes
//     another boundary than strict.
//   - A request asks for text and function calls only. Fields that would have a provider fetch, search, run
//     or store something for the agent (image addresses, hosted tools, store) are refused: they'd be a way
//     around the egress rules.
//   - Replies are built anew from the fields known here. Reasoning, provider's extensions and error texts
//     don't come through.
//
// A model of mode transparent gets and gives bytes as they are. Of a dialect a table says where model, limit, usage
// and what was written stand (dialect.go); nothing else is read, so a vendor's next field passes on its first day.
//
// An example:
//
//	config, err := llm.ParseConfig(section)
//	gateway, err := llm.New(llm.Options{Config: config, Entrance: entrance, Caller: caller, Secret: secrets})
//	mux.Handle("/v1/", gateway)
//	mux.Handle("/internal/llm/", gateway)
//
// Errors are {"ok":false,"error":{"code","message","next","type"}} (M-13), which OpenAI's clients read too;
// in the middle of a stream the same object comes as its last event, and no [DONE] after it.
//
// Why a sandboxed agent may call it: a completion changes nothing that could be undone; it reads what the
// agent has already and answers. So tool.llm.invoke is read-only and needs ring 3 (H-6), as M-7 wants it,
// which names it as an exit for all. What it does let out is the prompt, to providers that the operator
// chose; what it uses up is money, which the budgets hold.
//
// What it does not protect against. A provider that keeps or leaks what it is sent, or writes its reasoning
// into its answer. A provider that says less usage than there was: it is believed within what the bytes make
// plausible. Covert channels between the agent and a provider that conspire.
//
// How it fails. Closed: an upstream that is late, too long, silent, ends early or talks nonsense ends the
// call with an error; usage that can't be true is replaced by an estimate from the bytes that errs upwards.
package llm
