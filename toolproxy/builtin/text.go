// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"strings"
	"unicode/utf8"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

type textArgs struct {
	Op        string   `json:"op"`
	Text      string   `json:"text"`
	Items     []string `json:"items"`
	Separator *string  `json:"separator"`
	Old       string   `json:"old"`
	New       string   `json:"new"`
	Pattern   string   `json:"pattern"`
	Limit     int      `json:"limit"`
}

const (
	maxText  = 256 << 10 // bytes of text, and of what replace and join make of it
	maxItems = 10000
)

type textCount struct {
	Words int `json:"words"`
	Lines int `json:"lines"`
	Chars int `json:"chars"`
	Bytes int `json:"bytes"`
}

func editText(ctx context.Context, _ tools.Call, args textArgs) (any, error) {
	if len(args.Text) > maxText {
		return nil, tools.BadArguments("text has %d bytes, at most %d are allowed", len(args.Text), maxText)
	}
	switch args.Op {
	case "count":
		return countText(args.Text), nil
	case "upper":
		return strings.ToUpper(args.Text), nil
	case "lower":
		return strings.ToLower(args.Text), nil
	case "trim":
		return strings.TrimSpace(args.Text), nil
	case "replace":
		return replaceText(args)
	case "split":
		return splitText(args)
	case "join":
		return joinText(args)
	case "find":
		return findText(ctx, args)
	case "truncate":
		return truncateText(args)
	}
	return nil, tools.BadArguments("op %.20q is not one of the schema's", args.Op)
}

func countText(s string) textCount {
	c := textCount{Words: len(strings.Fields(s)), Lines: strings.Count(s, "\n"), Chars: utf8.RuneCountInString(s), Bytes: len(s)}
	if s != "" && !strings.HasSuffix(s, "\n") {
		c.Lines++
	}
	return c
}

// replaceText computes the size before anything is allocated: 256 KiB of "a" with a thousand bytes each would be 256 MB.
func replaceText(args textArgs) (any, error) {
	if args.Old == "" {
		return nil, tools.BadArguments("old is empty")
	}
	n := strings.Count(args.Text, args.Old)
	if size := len(args.Text) + n*(len(args.New)-len(args.Old)); size > maxText {
		return nil, tooMuch(size)
	}
	return map[string]any{"text": strings.ReplaceAll(args.Text, args.Old, args.New), "replaced": n}, nil
}

func tooMuch(size int) *gate.Error {
	return refuse(gate.CodeTooLarge, "work on less at once", "the result would have %d bytes, at most %d are allowed", size, maxText)
}

func separator(args textArgs) string {
	if args.Separator == nil {
		return "\n"
	}
	return *args.Separator
}

func splitText(args textArgs) (any, error) {
	sep := separator(args)
	if sep == "" {
		return nil, tools.BadArguments("separator is empty")
	}
	if n := strings.Count(args.Text, sep) + 1; n > maxItems {
		return nil, refuse(gate.CodeTooLarge, "split less at once", "there are %d pieces, at most %d are allowed", n, maxItems)
	}
	return strings.Split(args.Text, sep), nil
}

func joinText(args textArgs) (any, error) {
	if len(args.Items) > maxItems {
		return nil, tools.BadArguments("%d items, at most %d are allowed", len(args.Items), maxItems)
	}
	sep, size := separator(args), 0
	for _, item := range args.Items {
		size += len(item) + len(sep)
	}
	if size > maxText {
		return nil, tooMuch(size)
	}
	return strings.Join(args.Items, sep), nil
}

func truncateText(args textArgs) (any, error) {
	if args.Limit < 1 {
		return nil, tools.BadArguments("truncate needs a limit of at least 1")
	}
	n := 0
	for i := range args.Text {
		if n == args.Limit {
			return map[string]any{"text": args.Text[:i], "truncated": true}, nil
		}
		n++
	}
	return map[string]any{"text": args.Text, "truncated": false}, nil
}
