// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"hash/fnv"
	"math"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

type embeddingsArgs struct {
	Input []string `json:"input"`
	Model string   `json:"model"`
}

const (
	maxInputs = 64
	maxInput  = 32 << 10 // bytes of one text
)

// Vectors are what an Embedder answers: one for each text, in order.
type Vectors struct {
	Model   string
	Vectors [][]float32
	Tokens  int64
	Cost    int64 // millionths of the plans' unit

	Sent, Received int64 // bytes
}

// Embedder makes vectors: the LLM gateway's. A *gate.Error is passed to the agent. It must end with ctx. An empty model is
// its default one. Beside an error the Vectors say what the attempt has cost.
type Embedder interface {
	Embed(ctx context.Context, caller link.Caller, model string, texts []string) (Vectors, error)
}

type embeddings struct{ embedder Embedder }

func (e embeddings) run(ctx context.Context, c tools.Call, args embeddingsArgs) (any, error) {
	if len(args.Input) == 0 || len(args.Input) > maxInputs {
		return nil, tools.BadArguments("input is 1 to %d texts", maxInputs)
	}
	for _, text := range args.Input {
		if text == "" || len(text) > maxInput {
			return nil, tools.BadArguments("a text of input has 1 to %d bytes", maxInput)
		}
	}
	v, err := e.embedder.Embed(ctx, c.Caller, args.Model, args.Input)
	paid := tools.Result{Cost: v.Cost, Tokens: v.Tokens, Sent: v.Sent, Received: v.Received}
	if err == nil {
		err = v.check(len(args.Input))
	}
	if err != nil {
		return paid, err
	}
	out, err := json.Marshal(struct {
		Model      string      `json:"model"`
		Embeddings [][]float32 `json:"embeddings"`
	}{v.Model, v.Vectors})
	paid.Output = stdjson.RawMessage(out)
	return paid, err
}

// check holds an upstream to its word: a missing vector would shift all others to the wrong text.
func (v Vectors) check(texts int) error {
	if len(v.Vectors) != texts {
		return errors.New("embed: as many vectors as texts were asked for, another number came")
	}
	for _, vector := range v.Vectors {
		if len(vector) == 0 || len(vector) > link.MaxMemoryEmbedding {
			return errors.New("embed: a vector is empty or too long")
		}
		for _, x := range vector {
			if x-x != 0 {
				return errors.New("embed: a vector has a number that is not finite")
			}
		}
	}
	return nil
}

// LocalModel is the name of LocalEmbedder's model, and LocalDimensions the length of its vectors.
const (
	LocalModel      = "local-hash-256"
	LocalDimensions = 256
)

// LocalEmbedder is a test model: it adds up hashes of words and of their three-letter parts, with signs, and makes the
// length 1. The same text has the same vector everywhere; texts that share words are near each other. It knows no meaning.
type LocalEmbedder struct{}

// Embed never fails but with ctx, or for another model than LocalModel.
func (LocalEmbedder) Embed(ctx context.Context, _ link.Caller, model string, texts []string) (Vectors, error) {
	if model != "" && model != LocalModel {
		return Vectors{}, refuse(gate.CodeBadArguments, "leave model out, or name "+LocalModel, "there is no such embedding model")
	}
	v := Vectors{Model: LocalModel}
	for _, text := range texts {
		if ctx.Err() != nil {
			return Vectors{}, ended(ctx)
		}
		vector, words := embedLocally(text)
		v.Vectors = append(v.Vectors, vector)
		v.Tokens += int64(words)
	}
	return v, nil
}

func embedLocally(text string) ([]float32, int) {
	var sums [LocalDimensions]float64
	add := func(part string, weight float64) {
		h := fnv.New64a()
		h.Write([]byte(part)) //nolint:errcheck // a hash never fails
		sum := h.Sum64()
		if sum>>63 == 1 {
			weight = -weight
		}
		sums[sum%LocalDimensions] += weight
	}
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, word := range words {
		add(word, 1)
		runes := []rune(" " + word + " ")
		for i := 0; i+3 <= len(runes); i++ {
			add("3"+string(runes[i:i+3]), 0.25)
		}
	}
	return normalised(sums), len(words)
}

// normalised makes the length 1. A text without any word has the first axis as its vector, so that no vector is zero.
func normalised(sums [LocalDimensions]float64) []float32 {
	var square float64
	for _, x := range sums {
		square += x * x
	}
	if square == 0 {
		sums[0], square = 1, 1
	}
	length := math.Sqrt(square)
	vector := make([]float32, LocalDimensions)
	for i, x := range sums {
		vector[i] = float32(x / length)
	}
	return vector
}
