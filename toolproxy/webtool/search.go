// SPDX-License-Identifier: Apache-2.0

package webtool

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"

	"agentrun/internal/read"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/tools"
)

// Schema is the JSON Schema of the section search: of gateway.yaml.
//
//go:embed schema.json
var Schema []byte

// Search is the section search: of gateway.yaml. Without a URL there is no tool search-lite.
type Search struct {
	Engine string `yaml:"engine"` // searxng or opensearch
	URL    string `yaml:"url"`    // of SearXNG's /search, or of an index's /_search
	Fields Fields `yaml:"fields"` // of an index's documents
	httptool.Server
}

// Fields are the names under which documents have what a result is made of.
type Fields struct {
	Title string `yaml:"title"` // title
	URL   string `yaml:"url"`   // url
	Text  string `yaml:"text"`  // content
}

const (
	searxng    = "searxng"
	opensearch = "opensearch"
)

// ParseSearch reads the section; its error is a *read.InvalidError.
func ParseSearch(n *read.Node) (Search, error) {
	var c Search
	n.Into(&c)
	var err error
	switch {
	case n.Empty():
	case c.URL == "":
		err = read.Bad("url", "required: of SearXNG's /search, or of an index's /_search")
	case c.Engine != searxng && c.Engine != opensearch:
		err = read.Bad("engine", "%.32q: want searxng or opensearch", c.Engine)
	case c.Engine == searxng && c.Fields != Fields{}:
		err = read.Bad("fields", "SearXNG has its own")
	}
	if err := n.Done(err); err != nil {
		return Search{}, err
	}
	return c, nil
}

// Of one result, in bytes. They keep twenty of them well below what a model is willing to read.
const (
	maxResults = 20
	results    = 10
	maxTitle   = 200
	maxURL     = 2048
	maxText    = 1000
)

type searchArgs struct {
	Query string `json:"query"`
	Limit int    `json:"limit"`
}

type result struct {
	Title string `json:"title"`
	URL   string `json:"url"`
	Text  string `json:"text"`
}

// search asks by an HTTP tool, which has the place, the credentials and the bounds.
type search struct {
	Search
	http *httptool.Tool
}

func newSearch(c Search, secrets httptool.Secrets, trace func(context.Context) string) (*search, error) {
	c.Fields = Fields{cmp.Or(c.Fields.Title, "title"), cmp.Or(c.Fields.URL, "url"), cmp.Or(c.Fields.Text, "content")}
	send := map[string]string{searxng: "query", opensearch: "json"}[c.Engine]
	t, err := httptool.New(httptool.Config{URL: c.URL, Send: send, Server: c.Server}, httptool.Options{Secrets: secrets, Traceparent: trace})
	if err != nil {
		return nil, read.Under("search", err)
	}
	return &search{c, t}, nil
}

func (s *search) run(ctx context.Context, c tools.Call, args searchArgs) (any, error) {
	limit := cmp.Or(args.Limit, results)
	if limit < 1 || limit > maxResults || args.Query == "" {
		return nil, tools.BadArguments("want a query, and a limit of 1 to %d", maxResults)
	}
	question, err := json.Marshal(s.question(args.Query, limit))
	if err != nil {
		return nil, err
	}
	c.Args = telemetry.NewPlaintext(json.RawMessage(question))
	answer, err := s.http.Call(ctx, c)
	if err != nil {
		return answer, err
	}
	found, err := s.found(answer.Output)
	if err != nil {
		return nil, tools.Refuse(gate.CodeToolFailed, err, "tell the operator", "the search engine's answer isn't that of a %s", s.Engine)
	}
	answer.Output, err = json.Marshal(map[string]any{"results": found[:min(len(found), limit)]})
	return answer, err
}

// question has the query as a value and never as syntax: simple matching in the two fields that are shown, and of a document no
// more than what is.
func (s *search) question(query string, limit int) any {
	if s.Engine == searxng {
		return map[string]string{"q": query, "format": "json"}
	}
	f := s.Fields
	return map[string]any{
		"size": limit, "_source": []string{f.Title, f.URL, f.Text},
		"query": map[string]any{"multi_match": map[string]any{"query": query, "fields": []string{f.Title, f.Text}}},
	}
}

// found reads an answer of either engine. A result without an address is none.
func (s *search) found(answer []byte) ([]result, error) {
	var a struct {
		Results []map[string]any `json:"results"` // SearXNG
		Hits    struct {
			Hits []struct {
				Source map[string]any `json:"_source"`
			} `json:"hits"`
		} `json:"hits"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, err
	}
	for _, h := range a.Hits.Hits {
		a.Results = append(a.Results, h.Source)
	}
	list := []result{}
	for _, r := range a.Results {
		text := func(field string, most int) string {
			s, _ := r[field].(string)
			return tools.Cut(s, most)
		}
		if u, ok := r[s.Fields.URL].(string); ok && len(u) <= maxURL && u != "" {
			list = append(list, result{text(s.Fields.Title, maxTitle), u, text(s.Fields.Text, maxText)})
		}
	}
	return list, nil
}
