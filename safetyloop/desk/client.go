// SPDX-License-Identifier: Apache-2.0

package desk

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"agentrun/control"
	"agentrun/internal/uhttp"
	"agentrun/safetyloop"
	"agentrun/telemetry"
)

// Client asks one loop.
type Client struct{ c *control.Client }

// Name is the loop's, as in its socket.
func (c *Client) Name() string { return c.c.Name() }

// Show gives a challenge with its code, which is recorded.
func (c *Client) Show(ctx context.Context, id string) (s Shown, err error) {
	err = c.c.Ask(ctx, "POST", prefix+"/challenges/"+uhttp.Escape(id)+"/show", nil, &s)
	s.Challenge.Code = telemetry.NewPlaintext(s.Code)
	return s, err
}

// Verify answers a challenge.
func (c *Client) Verify(ctx context.Context, id, code string) error {
	return c.c.Ask(ctx, "POST", prefix+"/challenges/"+uhttp.Escape(id)+"/verify", map[string]string{"code": code}, nil)
}

// Confirm answers a confirmation's token.
func (c *Client) Confirm(ctx context.Context, token string) error {
	return c.c.Ask(ctx, "POST", prefix+"/confirm", map[string]string{"token": token}, nil)
}

// Unblock releases an agent.
func (c *Client) Unblock(ctx context.Context, agent, reason string) error {
	return c.c.Ask(ctx, "POST", prefix+"/unblock", map[string]string{"agent": agent, "reason": reason}, nil)
}

// Challenge is one that waits, and whose it is.
type Challenge struct {
	safetyloop.Challenge
	Loop string  `json:"loop"`
	By   *Client `json:"-"`
}

// Pending is a confirmation that is waited for, and whose it is.
type Pending struct {
	safetyloop.Pending
	Loop string  `json:"loop"`
	By   *Client `json:"-"`
}

// Block is an agent that is stopped, and by which loop.
type Block struct {
	safetyloop.Block
	Loop string  `json:"loop"`
	By   *Client `json:"-"`
}

// gather asks every supervisor of the run folder that has a loop for a list, and puts the lists in order. of
// is the list in an answer, whose names what is in it, and order compares. The error names the loops that
// didn't answer; what the others have is there beside it.
func gather[R, E, T any](
	ctx context.Context, runDir, path string, of func(R) []E, whose func(E, *Client) T, order func(a, b T) int,
) (all []T, err error) {
	var mu sync.Mutex
	err = control.Each(ctx, runDir, func(ctx context.Context, c *control.Client) error {
		var got R
		err := c.Ask(ctx, "GET", prefix+path, nil, &got)
		mu.Lock()
		defer mu.Unlock()
		for _, one := range of(got) {
			all = append(all, whose(one, &Client{c}))
		}
		return err
	})
	slices.SortFunc(all, order)
	return all, err
}

// Challenges lists what waits in every loop of the run folder, oldest first: see gather for its error. So do
// Confirmations and Blocks.
func Challenges(ctx context.Context, runDir string) ([]Challenge, error) {
	return gather(ctx, runDir, "/challenges", func(r challenges) []safetyloop.Challenge { return r.Challenges },
		func(one safetyloop.Challenge, c *Client) Challenge { return Challenge{one, c.Name(), c} },
		func(a, b Challenge) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID)) })
}

// Confirmations lists what waits for confirm.
func Confirmations(ctx context.Context, runDir string) ([]Pending, error) {
	return gather(ctx, runDir, "/pending", func(r pending) []safetyloop.Pending { return r.Pending },
		func(one safetyloop.Pending, c *Client) Pending { return Pending{one, c.Name(), c} },
		func(a, b Pending) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Token, b.Token)) })
}

// Blocks lists who is stopped.
func Blocks(ctx context.Context, runDir string) ([]Block, error) {
	return gather(ctx, runDir, "/blocks", func(r blocks) []safetyloop.Block { return r.Blocks },
		func(one safetyloop.Block, c *Client) Block { return Block{one, c.Name(), c} },
		func(a, b Block) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Agent, b.Agent)) })
}
