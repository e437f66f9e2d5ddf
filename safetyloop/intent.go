// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentrun/telemetry"
)

// intent is an approved step of a sandboxed agent that no tool call has used yet (S-15).
type intent struct {
	hint         telemetry.Plaintext[string]
	verb, target string // as judged
	since        time.Time
	expires      time.Time
}

// intend remembers an approved step. The oldest is dropped when there are too many: its call is then refused.
func (l *Loop) intend(p *principal, c Caller, v values, got verdict) {
	if !c.Bound {
		return
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(p.intents) >= maxIntents {
		p.intents = p.intents[1:]
	}
	p.intents = append(p.intents, intent{telemetry.NewPlaintext(v.text(pHint)), got.verb, got.target, now, now.Add(IntentTTL)})
}

// covers tells whether a step was about this call: its hint names the tool and the target, each as a word of its own, or they are
// what the judge recognised. A hint that names more than that was judged with all it names.
func (i *intent) covers(tool, target string) bool {
	hint := i.hint.Reveal()
	if tool == "" || !names(hint, tool) && !strings.EqualFold(i.verb, tool) {
		return false
	}
	return target == "" || names(hint, target) || i.target == target
}

// names tells whether text has word in it with nothing around it that could belong to it: a step about /data/a is none about
// /data/a.txt, nor about /other/data/a.
func names(text, word string) bool {
	for at := 0; ; {
		i := strings.Index(text[at:], word)
		if i < 0 {
			return false
		}
		begin, end := at+i, at+i+len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:begin])
		if (begin == 0 || ends(before)) && endsAt(text[end:]) {
			return true
		}
		at = begin + 1
	}
}

// endsAt: a full stop or colon ends a word only where the sentence goes on behind a space, or ends.
func endsAt(rest string) bool {
	r, n := utf8.DecodeRuneInString(rest)
	if n == 0 || ends(r) {
		return true
	}
	if !strings.ContainsRune(".:!?", r) {
		return false
	}
	next, n := utf8.DecodeRuneInString(rest[n:])
	return n == 0 || unicode.IsSpace(next)
}

func ends(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("\"'`()[]{}<>,;", r) }

// Intent consumes the approved step that a tool call must match where a profile says require_intent (S-15): nil once for each
// step. tool and target are those of the call itself, not of the agent's account of it; target is empty for a tool that has none.
// Every error refuses the call: ErrIntent, ErrBlocked, ErrUnread, or one of the audit. In monitoring a call without a step is
// recorded and let through; in logging and disabled there are no steps to match.
func (l *Loop) Intent(ctx context.Context, c Caller, tool, target string) error {
	if !l.evaluates() {
		return nil
	}
	if !validPrincipal(c.Principal) {
		return fmt.Errorf("tool %.80q: %w", tool, ErrIntent)
	}
	if err := l.Blocked(ctx, c); err != nil {
		return err
	}
	found, err := l.spend(c.Principal, tool, target)
	if err != nil {
		return err
	}
	code := "ok"
	if !found {
		code = "intent_missing"
	}
	l.observe("intent", code)
	if err := l.recordOperation(ctx, Call{Caller: c, Operation: opIntent}, tool, code); err != nil {
		return err
	}
	if code != "ok" && l.set.Mode == Enforcing {
		return fmt.Errorf("tool %.80q: %w: report it with %s first", tool, ErrIntent, opStep)
	}
	return nil
}

// spend doesn't wait for the principal's turn: a Stop that waits for the tool calls under way would wait for itself.
func (l *Loop) spend(principal, tool, target string) (bool, error) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.principals[principal]
	if l.closed {
		return false, ErrClosed
	}
	if p == nil {
		return false, nil
	}
	p.intents = slices.DeleteFunc(p.intents, func(i intent) bool { return !within(now, i.since, i.expires) })
	at := slices.IndexFunc(p.intents, func(i intent) bool { return i.covers(tool, target) })
	if at < 0 {
		return false, nil
	}
	p.intents = slices.Delete(p.intents, at, at+1)
	return true, nil
}
