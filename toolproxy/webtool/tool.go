// SPDX-License-Identifier: Apache-2.0

package webtool

import (
	"context"
	_ "embed"
	"net/http"

	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/tools"
)

// Options are what the tools are given.
type Options struct {
	Search      Search
	Secrets     httptool.Secrets
	Way         func() http.RoundTripper     // the run's egress, asked for at each call; nil: there is no browser-lite
	Traceparent func(context.Context) string // W3C trace context for the search engine; nil or "": none
}

// table describes the tools to agents.
//
//go:embed tools.json
var table []byte

// Definitions returns the tools that there are. It reads the ca_file of the search engine, so it runs before privileges are dropped.
func Definitions(o Options) ([]tools.Definition, error) {
	by := map[string]tools.Tool{}
	if o.Search.URL != "" {
		s, err := newSearch(o.Search, o.Secrets, o.Traceparent)
		if err != nil {
			return nil, err
		}
		by["search-lite"] = tools.Function[searchArgs](s.run)
	}
	if o.Way != nil {
		by["browser-lite"] = tools.Function[pageArgs](browser{o.Way}.run)
	}
	return tools.Described(table, by), nil
}
