// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"cmp"
	"context"
	"math"
	"slices"

	"agentrun/toolproxy/tools"
)

type hit struct {
	Item
	Similarity float64 `json:"similarity"`
}

// search orders the items whose embedding has as many numbers by cosine similarity; those that are equal by id, so that
// the same question has the same answer.
func (m memory) search(ctx context.Context, scope Scope, args memoryArgs) (any, error) {
	if len(args.Embedding) == 0 {
		if args.Tag == "" {
			return nil, tools.BadArguments("search needs an embedding or a tag")
		}
		return m.list(ctx, scope, args)
	}
	var wanted Item
	if err := wanted.setEmbedding(args.Embedding); err != nil {
		return nil, err
	}
	items, err := m.store.List(ctx, scope)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	hits := []hit{}
	for _, item := range items {
		if ctx.Err() != nil {
			return nil, ended(ctx)
		}
		if len(item.Embedding) != len(wanted.Embedding) || args.Tag != "" && !slices.Contains(item.Tags, args.Tag) {
			continue
		}
		similarity := cosine(item.Embedding, wanted.Embedding)
		item.Embedding = nil
		hits = append(hits, hit{item, similarity})
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.Similarity, a.Similarity) })
	return map[string]any{"items": hits[:min(len(hits), args.Limit)], "more": len(hits) > args.Limit}, nil
}

// cosine is the similarity of two vectors of one length, -1 to 1; 0 if one of them is zero. Sums of squares of float32
// can't overflow a float64: 4096 × (3.4e38)² is below 1e81.
func cosine(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		dot, aa, bb = dot+x*y, aa+x*x, bb+y*y
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return max(-1, min(1, dot/math.Sqrt(aa)/math.Sqrt(bb)))
}
