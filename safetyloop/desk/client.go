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
)

// Client asks one loop.
type Client struct{ c *control.Client }

// Name is the loop's, as in its socket.
func (c *Client) Name() string { return c.c.Name() }

// Show gives a challenge with its code, which is recorded.
func (c *Client) Show(ctx context.Context, id string) (s Shown, err error) {
	err = c.c.Ask(ctx, "POST", prefix+"/challenges/"+uhttp.Escape(id)+"/show", nil, &s)
	s.Challenge.Code = s.Code
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

// gather asks every supervisor of the run folder that has a loop; those without one answer not_found, and have nothing.
func gather[T any](ctx context.Context, runDir, path string, take func(ctx context.Context, c *Client, ask func(out any) error) ([]T, error)) (all []T, err error) {
	var mu sync.Mutex
	err = control.Each(ctx, runDir, func(ctx context.Context, c *control.Client) error {
		got, err := take(ctx, &Client{c}, func(out any) error { return c.Ask(ctx, "GET", prefix+path, nil, out) })
		mu.Lock()
		defer mu.Unlock()
		all = append(all, got...)
		return err
	})
	return all, err
}

// Challenges lists what waits in every loop of the run folder, oldest first. The error names the loops that didn't answer; what
// the others have is there beside it. So do Confirmations and Blocks.
func Challenges(ctx context.Context, runDir string) ([]Challenge, error) {
	all, err := gather(ctx, runDir, "/challenges", func(_ context.Context, c *Client, ask func(any) error) (list []Challenge, err error) {
		var got challenges
		err = ask(&got)
		for _, one := range got.Challenges {
			list = append(list, Challenge{one, c.Name(), c})
		}
		return list, err
	})
	slices.SortFunc(all, func(a, b Challenge) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID)) })
	return all, err
}

// Confirmations lists what waits for confirm.
func Confirmations(ctx context.Context, runDir string) ([]Pending, error) {
	all, err := gather(ctx, runDir, "/pending", func(_ context.Context, c *Client, ask func(any) error) (list []Pending, err error) {
		var got pending
		err = ask(&got)
		for _, one := range got.Pending {
			list = append(list, Pending{one, c.Name(), c})
		}
		return list, err
	})
	slices.SortFunc(all, func(a, b Pending) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Token, b.Token)) })
	return all, err
}

// Blocks lists who is stopped.
func Blocks(ctx context.Context, runDir string) ([]Block, error) {
	all, err := gather(ctx, runDir, "/blocks", func(_ context.Context, c *Client, ask func(any) error) (list []Block, err error) {
		var got blocks
		err = ask(&got)
		for _, one := range got.Blocks {
			list = append(list, Block{one, c.Name(), c})
		}
		return list, err
	})
	slices.SortFunc(all, func(a, b Block) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Agent, b.Agent)) })
	return all, err
}
