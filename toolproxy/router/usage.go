// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"errors"
	"net/http"
	"time"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// UsageOptions of NewUsage.
type UsageOptions struct {
	Budget  func(ctx context.Context) (link.Budget, error) // required: link.Supervisor's
	Timeout time.Duration                                  // of asking; 0: 2 s
	Ends    func() time.Time                               // of the run's time limit; zero: never. nil: it isn't told
}

// Unit is what amounts are counted in.
const Unit = "millionths of 1T"

// amount has null for what has no limit.
type amount struct {
	Spent int64  `json:"spent"`
	Left  *int64 `json:"left"`
}

// NewUsage returns the handler of /internal/usage and /internal/usage/budget: what the run has spent and may still spend.
// It takes no step of the run and no place; whoever mounts it bounds the rate.
func NewUsage(o UsageOptions) (http.Handler, error) {
	if o.Budget == nil {
		return nil, errors.New("usage: no budget to ask for")
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /internal/usage", o.usage)
	m.HandleFunc("GET /internal/usage/budget", o.budget)
	return known{m, "GET /internal/usage or GET /internal/usage/budget"}, nil
}

func (o UsageOptions) ask(w http.ResponseWriter, r *http.Request) (link.Budget, bool) {
	ctx, cancel := context.WithTimeout(r.Context(), o.Timeout)
	defer cancel()
	b, err := o.Budget(ctx)
	if err != nil {
		e := refuse(gate.CodeUnavailable, "the budget can't be asked for", "try again later")
		e.Cause = err
		writeError(w, "", e)
		return link.Budget{}, false
	}
	return b, true
}

func (o UsageOptions) usage(w http.ResponseWriter, r *http.Request) {
	b, ok := o.ask(w, r)
	if !ok {
		return
	}
	write(w, http.StatusOK, struct {
		OK         bool        `json:"ok"`
		Plan       string      `json:"plan"`
		Unit       string      `json:"unit"`
		Run        amount      `json:"run"`
		Day        amount      `json:"day"`
		Tokens     int64       `json:"tokens"`
		Steps      *int64      `json:"steps_left"`
		TimeLeft   *int64      `json:"time_left_s,omitempty"` // of the wall clock; absent: no limit
		Multiplier string      `json:"multiplier,omitempty"`
		Warning    string      `json:"warning,omitempty"`
		Budget     link.Budget `json:"budget"` // as /internal/usage/budget has it
	}{true, b.Plan, Unit, amount{b.RunSpent, limited(b.RunCost)}, amount{b.DaySpent, limited(b.DayCost)}, b.RunTokens,
		limited(b.Steps), o.left(), b.Multiplier, b.Warning, b})
}

func (o UsageOptions) left() *int64 {
	if o.Ends == nil || o.Ends().IsZero() {
		return nil
	}
	s := int64(max(time.Until(o.Ends()), 0) / time.Second)
	return &s
}

func limited(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

// budget is the supervisor's answer as it is, for programs: negative is unlimited.
func (o UsageOptions) budget(w http.ResponseWriter, r *http.Request) {
	if b, ok := o.ask(w, r); ok {
		write(w, http.StatusOK, struct {
			OK     bool        `json:"ok"`
			Unit   string      `json:"unit"`
			Budget link.Budget `json:"budget"`
		}{true, Unit, b})
	}
}
