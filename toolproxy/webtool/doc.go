// SPDX-License-Identifier: Apache-2.0

// Package webtool has the tools search-lite and browser-lite (M-11, category B): pages that a search engine of the operator's names,
// and the readable text of one page.
//
//	tools, err := webtool.Definitions(webtool.Options{Search: config, Secrets: secrets, Way: proxy.Transport})
//	// search-lite {"query":"go modules"} → {"results":[{"title":…,"url":…,"text":…}]}
//	// browser-lite {"url":"https://example.com/"} → {"url":…,"title":…,"text":…}
//
// Guarantees. search-lite asks one place, which the operator has named, with credentials that the agent never sees (package httptool);
// the agent gives words, and no syntax of the engine's. browser-lite goes out by the RoundTripper that it is given: the run's own
// egress, so that nothing is reached that the run couldn't reach by itself, and each redirect is decided anew. It sends GET, no
// cookie and no credential, runs no script, loads nothing that a page refers to. Replies are bounded before and after decompression,
// results in number and length; what is cut says so.
//
// Errors are *gate.Error: bad_arguments, tool_timeout, too_large, tool_failed, tool_restricted (no text), egress_denied, unavailable.
//
// What it does not protect against. What pages and engines say are strangers' words: they pass the filter of every output (package
// boundary), and a model may believe them all the same. A URL carries data to whoever is asked; where that may be, the egress says.
// Readability takes the main text of an article and leaves the rest; of other pages it may find little.
//
// It fails closed: an engine that isn't known, a URL that could be read in two ways, a reply that is no text refuse.
package webtool
