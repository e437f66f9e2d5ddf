// SPDX-License-Identifier: Apache-2.0

package webtool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"codeberg.org/readeck/go-readability/v2"
	"github.com/go-json-experiment/json"
	"golang.org/x/net/html"
	"golang.org/x/net/html/charset"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/tools"
)

const (
	maxPage      = 4 << 20 // bytes, unpacked
	maxElements  = 50_000  // of a page, before its main text is looked for
	maxRedirects = 5
	pageText     = 32 << 10  // bytes of text, unless asked for otherwise
	maxPageText  = 256 << 10 // that may be asked for
)

// turn is held by whoever reads a page of HTML: one of elements that say nothing takes fifty times its bytes, so that those of all calls at
// once would be more memory than a gateway has.
var turn = make(chan struct{}, 1)

// browser fetches pages by the way that the run has.
type browser struct{ way func() http.RoundTripper }

type pageArgs struct {
	URL   string `json:"url"`
	Limit int    `json:"limit"`
}

type page struct {
	URL   string `json:"url"` // after redirects
	Title string `json:"title,omitempty"`
	Text  string `json:"text"`
	Cut   bool   `json:"cut,omitzero"` // there is more of it
}

func (b browser) run(ctx context.Context, _ tools.Call, args pageArgs) (any, error) {
	limit := cmp.Or(args.Limit, pageText)
	if limit < 1 || limit > maxPageText {
		return nil, tools.BadArguments("limit is 1 to %d", maxPageText)
	}
	u, e := address(args.URL)
	if e != nil {
		return nil, e
	}
	resp, err := b.get(ctx, u)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // nothing is written
	text, body, err := readPage(ctx, resp)
	if err != nil {
		return nil, err
	}
	title := ""
	if text == "" {
		if title, text, err = inTurn(ctx, body, resp.Request.URL); ctx.Err() != nil {
			return nil, httptool.Unreachable(ctx, ctx.Err())
		} else if err != nil {
			return nil, tools.Refuse(gate.CodeToolFailed, err, "try another page", "the page has no text that can be made out")
		}
	}
	p := page{URL: resp.Request.URL.String(), Title: tools.Cut(title, maxTitle), Text: tools.Cut(text, limit), Cut: len(text) > limit}
	out, err := json.Marshal(p)
	return tools.Result{Output: out, Received: int64(len(body))}, err
}

// address takes what is plainly a page's. Where it may be, the egress decides: a second list here would be another answer.
func address(unsafe string) (*url.URL, *gate.Error) {
	u, err := url.Parse(unsafe)
	if err != nil || u.Host == "" || u.User != nil || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, tools.BadArguments("url is http://HOST/PATH or https://HOST/PATH, without a user")
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// get follows redirects to where an address may lead; each is a request of its own, which the egress decides.
func (b browser) get(ctx context.Context, u *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{
		"User-Agent": {"agentrun-browser-lite"}, "Accept": {"text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.8"},
	}
	client := http.Client{Transport: b.way(), CheckRedirect: func(next *http.Request, via []*http.Request) error {
		next.Header.Del("Referer") // nobody is told where the agent comes from
		if _, e := address(next.URL.String()); e != nil || len(via) > maxRedirects {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*gate.Error](err); ok { // the egress's
			return nil, e
		}
		return nil, httptool.Unreachable(ctx, err)
	}
	if e := httptool.Status(resp); e != nil {
		_ = resp.Body.Close() // of an error nothing is read
		return nil, e
	}
	return resp, nil
}

// readPage returns the text of a reply that is plain, or else the body of one that is a page of HTML in UTF-8.
func readPage(ctx context.Context, resp *http.Response) (text string, body []byte, err error) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	markup := slices.Contains([]string{"", "text/html", "application/xhtml+xml"}, kind)
	if !markup && !strings.HasPrefix(kind, "text/") && !slices.Contains([]string{"application/json", "application/xml"}, kind) {
		return "", nil, tools.Refuse(gate.CodeToolRestricted, nil, "fetch a page of text", "what is there is no text")
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case err != nil:
		return "", nil, httptool.Unreachable(ctx, err)
	case len(body) > maxPage:
		return "", nil, tools.Refuse(gate.CodeTooLarge, nil, "fetch a shorter page", "the page has more than %d bytes", maxPage)
	}
	decoded, err := charset.NewReader(bytes.NewReader(body), resp.Header.Get("Content-Type"))
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(decoded, 2*maxPage)) // a byte of another encoding may become three
	} else if len(body) == 0 {
		err = nil
	}
	if err != nil || !utf8.Valid(body) {
		return "", nil, tools.Refuse(gate.CodeToolRestricted, err, "fetch a page of text", "the page's characters can't be made out")
	}
	if !markup {
		return string(body), body, nil
	}
	return "", body, nil
}

// inTurn is readable, when those that came before are read.
func inTurn(ctx context.Context, body []byte, at *url.URL) (title, text string, err error) {
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
		return readable(body, at)
	case <-ctx.Done():
		return "", "", ctx.Err()
	}
}

// readable is the main text of a page of HTML, as a browser's reader view has it.
func readable(body []byte, at *url.URL) (title, text string, err error) {
	doc, err := html.Parse(bytes.NewReader(body))
	if err != nil {
		return "", "", err
	}
	p := readability.NewParser()
	p.MaxElemsToParse, p.DisableJSONLD = maxElements, true
	article, err := p.ParseAndMutate(doc, at)
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	if article.Node != nil {
		err = article.RenderText(&b)
	}
	if text = strings.TrimSpace(b.String()); text == "" && err == nil {
		err = errors.New("no text")
	}
	return article.Title(), text, err
}
