// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
)

type embeddingsRequest struct {
	Model      string                 `json:"model"`
	Input      unsaid[jsontext.Value] `json:"input"`
	Format     string                 `json:"encoding_format"`
	Dimensions *int64                 `json:"dimensions"`
	User       unsaid[string]         `json:"user"` // not passed on
}

const (
	maxInputs     = 2048
	maxInputBytes = 64 << 10
	maxDimensions = 16 << 10
)

// inputs are texts. Lists of token numbers are refused: nobody here could say what is in them.
func (r *embeddingsRequest) inputs() ([]string, *gate.Error) {
	var list []string
	input := r.Input.Reveal()
	switch input.Kind() {
	case '"':
		list = make([]string, 1)
		if json.Unmarshal(input, &list[0]) != nil {
			return nil, badArguments("input is malformed")
		}
	case '[':
		if json.Unmarshal(input, &list) != nil {
			return nil, badArguments("input is neither text nor a list of texts")
		}
	}
	return list, checkTexts(list)
}

func checkTexts(list []string) *gate.Error {
	if len(list) == 0 || len(list) > maxInputs {
		return badArguments("input has no text, or more than %d", maxInputs)
	}
	for i, s := range list {
		if s == "" || len(s) > maxInputBytes {
			return badArguments("input[%d] is empty or longer than %d bytes", i, maxInputBytes)
		}
	}
	return nil
}

func sizeOf(texts []string) (bytes int) {
	for _, s := range texts {
		bytes += len(s)
	}
	return bytes
}

func (r *embeddingsRequest) check() *gate.Error {
	if r.Format != "" && r.Format != "float" && r.Format != "base64" {
		return badArguments("encoding_format must be float or base64")
	}
	if r.Dimensions != nil && (*r.Dimensions < 1 || *r.Dimensions > maxDimensions) {
		return badArguments("dimensions is not within 1 and %d", maxDimensions)
	}
	return nil
}

// embeddings answers a request for vectors, in the order of chat: whatever makes no sense is refused by
// turnAway, at the price of a call, before anybody outside hears of it.
func (g *Gateway) embeddings(w http.ResponseWriter, r *http.Request) {
	var req embeddingsRequest
	body, e := g.body(w, r)
	if e == nil {
		e = decode(body, &req)
	}
	if e == nil {
		e = req.check()
	}
	var texts []string
	if e == nil {
		texts, e = req.inputs()
	}
	var t *target
	if e == nil {
		t, e = g.find(kindEmbeddings, req.Model)
	}
	if e != nil {
		g.turnAway(w, r, "embeddings", embedded, e)
		return
	}
	g.embed(w, r, body, &req, texts, t)
}

func (g *Gateway) embed(w http.ResponseWriter, r *http.Request, body []byte, req *embeddingsRequest, texts []string, t *target) {
	size := sizeOf(texts)
	var flags []string
	for _, s := range texts {
		flags = boundary.Merge(flags, boundary.Inspect(s))
	}
	input := tokensOf(size)
	permit, e := g.enter(r, embedded.api(), body, gate.Call{
		Tool: "embeddings", Estimate: t.model.cost(input, 0), Tokens: input, Flags: flags, Timeout: t.provider.Timeout,
		PlaintextFree: true, // numbers, checked as such (M-15)
	})
	if e != nil {
		writeError(w, e)
		return
	}
	c := newCall(g, t, permit, size, 0, t.provider.Timeout)
	// nobody is left to be told
	defer func() { _ = c.end(refuse(gate.CodeToolFailed, "the call was given up", "try again")) }()
	vectors, e := c.vectors(req, texts)
	if e = c.end(e); e != nil {
		g.o.Log.Warn("embeddings call", "model", t.model.Name, "code", e.Code, "cause", gate.CauseOf(e.Cause))
		writeError(w, e)
		return
	}
	writeVectors(w, req, vectors, c.settled)
}

// vectors are asked for as numbers whatever the agent wants: numbers can be checked, base64 could hold any
// text (M-15). The budgets hear of the call before it goes out, and of what the provider says it used before
// anything is given out: a stop in between withholds the vectors, not the bill.
func (c *call) vectors(req *embeddingsRequest, texts []string) ([][]float64, *gate.Error) {
	if e := c.meter(); e != nil {
		return nil, e
	}
	if c.target.rt == nil {
		return c.localVectors(req, texts)
	}
	up, err := json.Marshal(struct {
		Model      string   `json:"model"`
		Input      []string `json:"input"`
		Format     string   `json:"encoding_format"`
		Dimensions *int64   `json:"dimensions,omitzero"`
	}{c.target.model.Upstream, texts, "float", req.Dimensions})
	if err != nil {
		return nil, failure(c.ctx, err)
	}
	text, err := c.fetch("/embeddings", up)
	if err != nil {
		return nil, failure(c.ctx, err)
	}
	vectors, used, err := parseVectors(text, len(texts))
	if err != nil {
		return nil, failure(c.ctx, err)
	}
	c.final = used
	u := c.bill()
	if e := c.permit.Spent(c.target.model.cost(u.Prompt, 0), u.Total); e != nil {
		return nil, e
	}
	return vectors, nil
}

// localVectors answers for the test model. Its usage is an estimate by four bytes for a token, so that
// examples come out the same each time; it isn't sent anywhere, so nothing was received.
func (c *call) localVectors(req *embeddingsRequest, texts []string) ([][]float64, *gate.Error) {
	dimensions := localDimensions
	if req.Dimensions != nil {
		dimensions = min(dimensions, int(*req.Dimensions))
	}
	var vectors [][]float64
	for _, s := range texts {
		vectors = append(vectors, localEmbedding(s, dimensions))
	}
	c.final = &usage{Prompt: int64(c.sentBytes+3) / 4}
	return vectors, nil
}

// fetch is one request with a whole JSON reply. Anything but JSON is no answer: a page of a proxy on the way,
// say, which must neither be parsed nor be quoted.
func (c *call) fetch(path string, body []byte) ([]byte, error) {
	resp, kind, progress, err := c.post(path, body, "application/json")
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	if kind != "application/json" {
		return nil, errForm
	}
	// A vector of 3072 numbers takes 64 KiB as text, and there may be many.
	return c.readAll(resp, progress, c.gateway.o.Config.Limits.Reply)
}

// parseVectors reads a reply: one vector for each text, finite numbers, all of one length. Providers may give
// them in any order, told by their index; an index twice, one too many or one missing would hand a text the
// vector of another, so any of it makes the whole reply malformed. Numbers beyond 32 bits are refused because
// clients that ask for base64 get those, and an infinity in an index of vectors spoils every comparison after
// it.
func parseVectors(text []byte, n int) ([][]float64, *usage, error) {
	var reply struct {
		Error jsontext.Value `json:"error"`
		Data  few[struct {
			Index     int       `json:"index"`
			Embedding []float64 `json:"embedding"`
		}] `json:"data"`
		Usage jsontext.Value `json:"usage"`
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		return nil, nil, errForm
	}
	if len(reply.Error) > 0 && reply.Error.Kind() != 'n' {
		return nil, nil, errSaid
	}
	if len(reply.Data) != n {
		return nil, nil, errForm
	}
	vectors := make([][]float64, n)
	for _, d := range reply.Data {
		if d.Index < 0 || d.Index >= n || vectors[d.Index] != nil || len(d.Embedding) == 0 || len(d.Embedding) > maxDimensions ||
			len(d.Embedding) != len(reply.Data[0].Embedding) {
			return nil, nil, errForm
		}
		for _, x := range d.Embedding {
			if math.IsNaN(x) || math.Abs(x) > math.MaxFloat32 {
				return nil, nil, errForm
			}
		}
		vectors[d.Index] = d.Embedding
	}
	return vectors, usageOf(reply.Usage), nil
}

type vectorEntry struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"`
}

func writeVectors(w http.ResponseWriter, req *embeddingsRequest, vectors [][]float64, u usage) {
	data := make([]vectorEntry, len(vectors))
	for i, v := range vectors {
		data[i] = vectorEntry{"embedding", i, v}
		if req.Format == "base64" {
			data[i].Embedding = packed(v)
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Object string         `json:"object"`
		Data   []vectorEntry  `json:"data"`
		Model  string         `json:"model"`
		Usage  embeddingUsage `json:"usage"`
	}{"list", data, req.Model, embeddingUsage{u.Prompt, u.Total}})
}

type embeddingUsage struct {
	Prompt int64 `json:"prompt_tokens"`
	Total  int64 `json:"total_tokens"`
}

// packed is the form that OpenAI's clients ask for by themselves: 32-bit floats, little-endian, in base64.
func packed(v []float64) string {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return base64.StdEncoding.EncodeToString(b)
}
