// SPDX-License-Identifier: Apache-2.0

package llm

import "math/bits"

// perMillion: prices are for a million tokens.
const perMillion = 1_000_000

// cost of these tokens, rounded up; amounts out of range saturate. Rounding up makes many small calls not
// free.
func (m *Model) cost(input, output int64) int64 {
	return mulDiv(input, m.Input) + mulDiv(output, m.Output)
}

// price of a call: cost, with what the provider says of its cache at its own price.
func (m *Model) price(u usage) int64 {
	from := min(u.fromCache, u.Prompt)
	kept := min(u.cached, u.Prompt-from)
	return min(m.cost(u.Prompt-from-kept, u.Completion), mostCost) + min(mulDiv(from, m.FromCache)+mulDiv(kept, m.Cached), mostCost)
}

const mostCost = 1 << 61 // two of them still fit

// mulDiv multiplies in 128 bits: a configured price and an unlikely count of tokens may exceed 64, and a cost
// that wrapped around would be negative, a gift. What is out of range is the greatest amount there is, which
// no budget has.
func mulDiv(tokens, price int64) int64 {
	if tokens <= 0 || price <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(tokens), uint64(price))
	lo, carry := bits.Add64(lo, perMillion-1, 0)
	if hi += carry; hi >= perMillion {
		return mostCost
	}
	q, _ := bits.Div64(hi, lo, perMillion)
	return int64(min(q, mostCost))
}

// tokensOf estimates tokens from bytes, upwards: English has about four bytes for a token in the vocabularies
// in use, other scripts and code fewer, and three errs on the side of the budget.
func tokensOf(size int) int64 { return int64(size+2) / 3 }

// usage is what a provider says was used.
type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
	// parts of Prompt: out of the provider's cache, and into it
	fromCache, cached int64
}

// leastFile is how many tokens an image or a file is taken for at least, as long as no count is known: providers count its points or
// pages, and a large picture in one colour has some hundred bytes. It is what Anthropic counts at most, and others for a screen.
const leastFile = 1600

// inputTokens are those of a prompt of so many bytes, images and files among them.
func inputTokens(size, media int) int64 { return tokensOf(size-media) + int64(media)/mediaToken }

// plausibleInput: a token has at least a byte, no vocabulary has tokens of more than 128 bytes on average,
// and a provider adds a template or leaves one out. No provider counts an image by its bytes.
func plausibleInput(said int64, sent, media int) bool {
	return said > 0 && said >= (int64(sent-media)-4096)/128 && said <= int64(sent)+4096
}

// plausiblePassed is of mode transparent: the provider may have a conversation, files or thoughts that nobody saw
// here, so only too little can't be true, and what no model has room for.
func plausiblePassed(said usage, input int64, out int) bool {
	return plausiblePrompt(said.Prompt, input) && plausibleOutput(said.Completion, maxSaid, out)
}

func plausiblePrompt(said, input int64) bool {
	return said > 0 && said >= input*3/128-32 && said <= maxSaid
}

// plausibleOutput: no vocabulary has tokens of more than 128 bytes on average, and no reply is much longer
// than it may be.
func plausibleOutput(said, most int64, size int) bool {
	return said >= int64(size)/128 && said <= 2*most+1024
}
