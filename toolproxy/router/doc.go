// SPDX-License-Identifier: Apache-2.0

// Package router serves /internal/router/… and /internal/usage… (M-7): it finds the tool for an intent, and tells an agent
// what is left of its budget (M-19).
//
// What it guarantees. An intent is matched by fixed rules, in a fixed order, without a model: the operator's rules, then the
// name of a tool, then words. The same intent with the same tools goes to the same tool; where two fit equally well none is
// taken. Only tools that the Invoker lists for this agent are found, and calling one is the Invoker's business with all its
// decisions: the router gives no right.
//
//	config, err := router.ParseConfig(section)
//	handler, err := router.New(router.Options{Config: config, Tools: registry})
//	usage, err := router.NewUsage(router.UsageOptions{Budget: supervisor.Budget})
//
//	POST /internal/router/dispatch {"intent":"calculate","args":{"expression":"6*7"}}
//	→ {"ok":true,"tool":"math","matched":"rule","output":42}
//	GET  /internal/router/intents
//	GET  /internal/usage   GET /internal/usage/budget
//
// Errors are {"ok":false,"error":{"code","message","next"}} (M-13); tool_unknown if nothing fits.
//
// What it does not protect against. An operator's rule that sends a harmless intent to a tool that isn't: what is called is
// told in the answer and decided and recorded as every call.
//
// How it fails. Closed: a budget that can't be asked is unavailable, not unlimited; a body that isn't exactly what is read is
// refused.
package router
