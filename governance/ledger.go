// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentrun/rings"
)

// Codes of refused reservations; those of the tool proxy.
const (
	CodeCost        rings.Code = "cost_exceeded"
	CodeQuota       rings.Code = "quota_exceeded"
	CodeUnavailable rings.Code = "unavailable"
)

// Loan is what a bank gave for a day.
type Loan struct {
	Day  Day     // the account's: later than asked for if the clock was set back
	Lent Amounts // at most what was wanted
	Used Amounts // by all runs of the subject, with everything lent
}

// Bank keeps the subject's Account where all its runs find it. With an error nothing was lent.
type Bank interface {
	// Borrow lends up to want. Wanting nothing only looks.
	Borrow(ctx context.Context, day Day, want, limit Amounts) (Loan, error)
	Return(ctx context.Context, day Day, rest Amounts) error
	// Book adds what nobody has lent: a call cost more than its cap.
	Book(ctx context.Context, day Day, over Amounts) error
}

// maxOpen bounds the reservations of a run at once: a ring has at most 32 tools at once (H-11).
const maxOpen = 256

// Ledger holds one run to its quotas (M-19). Safe for concurrent use; nil and the zero value refuse.
//
// It borrows from the day's account in pieces, so that a call costs a few comparisons and no disk: a 32nd of what is left of
// the day, at most what is left of the run. A run that hoards a piece keeps less from its neighbours the less there is left. What was
// borrowed beyond a piece, for a call that asked for more, goes back as soon as the call doesn't hold it: its arguments are an agent's.
type Ledger struct {
	grant Grant
	bank  Bank
	now   func() time.Time

	mu      sync.Mutex
	day     Day
	loan    Amounts // borrowed for day, neither held nor spent
	dayUsed Amounts // the account's, when we last saw it
	spent   Amounts // settled
	held    Amounts // by open reservations
	over    Amounts // what calls cost beyond what could be booked
	open    map[uint64]*hold
	last    uint64
	warned  map[string]bool
	closed  bool
}

type hold struct {
	day    Day
	room   Amounts // reserved
	booked Amounts // of it, so far; what it cost never falls
}

// Crossing is a quota of which 80 % are used. Each is told once a run.
type Crossing struct {
	Quota       string // run_cost, day_cost, run_tokens, day_tokens
	Used, Limit int64
}

// Answer is what the ledger says to a reservation. The zero value refuses.
type Answer struct {
	Allowed bool
	ID      uint64
	Cap     Amount // what the call may cost in all, as far as is known now
	Code    rings.Code
	Message string
	Next    string
	Warning string     // as long as 80 % of a quota are used
	Crossed []Crossing // for the record
	Over    Amounts    // of a final settlement: what it cost beyond its caps
	AtCap   bool       // of a refusal: there is no room for a smaller call either, as good as none
}

// NewLedger returns the ledger of one run.
func NewLedger(g Grant, bank Bank, now func() time.Time) *Ledger {
	return &Ledger{grant: g, bank: bank, now: now, open: map[uint64]*hold{}, warned: map[string]bool{}}
}

func (l *Ledger) usable() bool { return l != nil && l.bank != nil && l.now != nil }

func unavailable(message string) Answer {
	return Answer{Code: CodeUnavailable, Message: message, Next: "try again; if it stays so, the operator has to look"}
}

// Reserve holds room for a call that is estimated to use that much. Nothing is held for nothing, which is always allowed.
func (l *Ledger) Reserve(ctx context.Context, estimate Amounts) Answer {
	if !l.usable() {
		return unavailable("there is no ledger")
	}
	estimate = estimate.clip()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.open) >= maxOpen {
		return unavailable("the run has ended, or has too many calls open")
	}
	got, err := l.acquire(ctx, estimate)
	if err != nil {
		return unavailable("the budget can't be read")
	}
	if !estimate.within(got) {
		l.giveBack(got)
		no := l.exceeded(estimate, got)
		l.shed(ctx)
		return no
	}
	l.last++
	l.open[l.last] = &hold{day: l.day, room: got}
	l.held = l.held.plus(got)
	return l.answer(l.last)
}

// Settle books what a reservation has cost so far, or in the end. A final one releases what is left of it; one that isn't
// asks for more room if there is too little. Not allowed means: stop the call now. What was over its caps is told as Over.
func (l *Ledger) Settle(ctx context.Context, id uint64, cost Amounts, final bool) Answer {
	if !l.usable() {
		return unavailable("there is no ledger")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.open[id]
	if h == nil || l.closed {
		return unavailable("there is no such reservation")
	}
	total := most(h.booked, cost.clip())
	need := most(total.minus(h.room), Amounts{})
	got, err := l.acquire(ctx, need)
	h.room, l.held = h.room.plus(got), l.held.plus(got)
	h.booked = least(total, h.room)
	excess := total.minus(h.booked)
	if final {
		l.settle(id, h)
		l.over = l.over.plus(excess).clip()
		if excess != (Amounts{}) {
			// Else each further run of the day could cost that much more than the account says.
			err = errors.Join(err, l.bank.Book(ctx, l.day, excess))
			l.dayUsed = l.dayUsed.plus(excess).clip()
		}
		l.shed(ctx)
	}
	a := l.answer(id)
	switch {
	case err != nil:
		// What it cost is on no account: nothing more may be spent.
		l.closed = l.closed || final && excess != Amounts{}
		a = unavailable("the budget can't be read")
	case excess != Amounts{}:
		a = l.exceeded(need, got)
		a.AtCap = true // it was stopped in its middle
	}
	if final {
		a.Over = excess
	}
	return a
}

func (l *Ledger) settle(id uint64, h *hold) {
	delete(l.open, id)
	l.held = l.held.minus(h.room)
	l.spent = l.spent.plus(h.booked)
	if h.day == l.day {
		l.giveBack(h.room.minus(h.booked))
	}
}

func (l *Ledger) giveBack(a Amounts) { l.loan = l.loan.plus(a) }

// shed returns what is borrowed beyond a piece. What can't be returned counts as spent, as with a supervisor that dies.
func (l *Ledger) shed(ctx context.Context) {
	limit, used := l.grant.DayCap(), l.dayUsed.minus(l.loan)
	rest := Amounts{beyond(l.loan.Cost, limit.Cost, used.Cost), beyond(l.loan.Tokens, limit.Tokens, used.Tokens)}
	if rest == (Amounts{}) {
		return
	}
	l.loan = l.loan.minus(rest)
	if l.bank.Return(ctx, l.day, rest) == nil {
		l.dayUsed = l.dayUsed.minus(rest)
	}
}

// beyond is how much of a loan is more than a piece. Of days without a limit nobody lacks any.
func beyond(loan, limit, used int64) int64 {
	if limit == Unlimited {
		return 0
	}
	return max(loan-leftOf(limit, used)/32, 0)
}

// acquire takes up to need out of the run and the day; the caller holds it from then on.
func (l *Ledger) acquire(ctx context.Context, need Amounts) (Amounts, error) {
	l.turn(DayOf(l.now()))
	free := l.runLeft()
	want := least(need, free)
	if missing := most(want.minus(l.loan), Amounts{}); missing != (Amounts{}) {
		if err := l.borrow(ctx, missing, free); err != nil {
			return Amounts{}, err
		}
	}
	got := least(want, l.loan)
	l.loan = l.loan.minus(got)
	return got, nil
}

// turn begins a new day. What is left of a loan was for the old one. A clock set back changes nothing.
func (l *Ledger) turn(day Day) {
	if day > l.day {
		l.day, l.loan, l.dayUsed = day, Amounts{}, Amounts{}
		delete(l.warned, "day_cost")
		delete(l.warned, "day_tokens")
	}
}

func (l *Ledger) borrow(ctx context.Context, missing, free Amounts) error {
	limit := l.grant.DayCap()
	want := Amounts{
		piece(missing.Cost, free.Cost, limit.Cost, l.dayUsed.Cost, 50_000),
		piece(missing.Tokens, free.Tokens, limit.Tokens, l.dayUsed.Tokens, 100_000),
	}
	loan, err := l.bank.Borrow(ctx, l.day, want, limit)
	if err != nil {
		return err
	}
	l.turn(loan.Day)
	l.loan = l.loan.plus(loan.Lent)
	l.dayUsed = loan.Used
	return nil
}

// piece is how much to borrow at once. usual is for days without a limit.
func piece(missing, free, limit, used, usual int64) int64 {
	if missing == 0 {
		return 0
	}
	if limit != Unlimited {
		usual = leftOf(limit, used) / 32
	}
	return min(max(missing, usual), free)
}

// answer is a grant, with the warnings that stand.
func (l *Ledger) answer(id uint64) Answer {
	a := Answer{Allowed: true, ID: id, Code: rings.CodeOK}
	if h := l.open[id]; h != nil {
		a.Cap = h.room.Cost + least(l.runLeft(), l.dayLeft()).Cost
	}
	for _, q := range l.quotas() {
		if !q.full() {
			continue
		}
		if a.Warning == "" {
			a.Warning = q.sentence()
		}
		if !l.warned[q.Quota] {
			l.warned[q.Quota] = true
			a.Crossed = append(a.Crossed, q)
		}
	}
	return a
}

// runLeft is at most what keeps a run's sums countable, also where it has no cap.
func (l *Ledger) runLeft() Amounts {
	used := l.spent.plus(l.held)
	return least(l.grant.RunCap().left(used), Amounts{MaxQuota, MaxQuota}.minus(used))
}

func (l *Ledger) dayLeft() Amounts { return l.grant.DayCap().left(l.dayUsed).plus(l.loan) }

func (l *Ledger) quotas() [4]Crossing {
	run, day := l.spent.plus(l.held), most(l.dayUsed.minus(l.loan), Amounts{})
	return [4]Crossing{
		{"run_cost", run.Cost, l.grant.Limits.CostPerRun}, {"day_cost", day.Cost, l.grant.Limits.CostPerDay},
		{"run_tokens", run.Tokens, l.grant.Limits.TokensPerRun}, {"day_tokens", day.Tokens, l.grant.Limits.TokensPerDay},
	}
}

// full: four fifths are used, and the run was warned (M-19).
func (c Crossing) full() bool { return c.Limit > 0 && c.Used >= c.Limit-c.Limit/5 }

func (c Crossing) sentence() string {
	what := map[string]string{
		"run_cost": "the run's cost", "day_cost": "the day's cost", "run_tokens": "the run's tokens", "day_tokens": "the day's tokens",
	}[c.Quota]
	return fmt.Sprintf("over 80 %% of the quota for %s is used (plan limit)", what)
}

// exceeded says which quota has no room for need, of which only got was to be had.
func (l *Ledger) exceeded(need, got Amounts) Answer {
	code, scope, what := CodeQuota, "day", "tokens"
	free := l.runLeft()
	if need.Cost > got.Cost {
		code, what = CodeCost, "cost"
		if free.Cost < need.Cost {
			scope = "run"
		}
	} else if free.Tokens < need.Tokens {
		scope = "run"
	}
	atCap := false
	for _, q := range l.quotas() {
		atCap = atCap || q.Quota == scope+"_"+what && q.full()
	}
	next := "do with less, or end: the quota of a run doesn't grow"
	if scope == "day" {
		next = "come back after midnight UTC, or ask the operator for a larger plan"
	}
	return Answer{Code: code, Message: fmt.Sprintf("plan %s: the %s's quota for %s leaves no room", l.grant.Plan, scope, what), Next: next, AtCap: atCap}
}

// Usage is where a run stands. Left is Unlimited where there is no quota.
type Usage struct {
	Grant             Grant
	RunSpent, RunLeft Amounts
	DaySpent, DayLeft Amounts
	Over              Amounts
	Warning           string
}

// Spent is what the run has used so far, what calls cost beyond their caps included, without a look at the day's account.
func (l *Ledger) Spent() Amounts {
	if !l.usable() {
		return Amounts{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent.plus(l.held).plus(l.over)
}

// Usage looks at the day's account anew.
func (l *Ledger) Usage(ctx context.Context) (Usage, error) {
	if !l.usable() {
		return Usage{}, errors.New("there is no ledger")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(DayOf(l.now()))
	loan, err := l.bank.Borrow(ctx, l.day, Amounts{}, l.grant.DayCap())
	if err != nil {
		return Usage{}, err
	}
	l.turn(loan.Day)
	l.dayUsed = loan.Used
	run, day := l.grant.RunCap(), l.grant.DayCap()
	u := Usage{
		Grant: l.grant, RunSpent: l.spent.plus(l.held), DaySpent: most(l.dayUsed.minus(l.loan), Amounts{}), Over: l.over,
		RunLeft: l.runLeft(), DayLeft: l.dayLeft(),
	}
	for _, p := range []struct {
		limit int64
		left  *int64
	}{{run.Cost, &u.RunLeft.Cost}, {run.Tokens, &u.RunLeft.Tokens}, {day.Cost, &u.DayLeft.Cost}, {day.Tokens, &u.DayLeft.Tokens}} {
		if p.limit == Unlimited {
			*p.left = Unlimited
		}
	}
	for _, q := range l.quotas() {
		if u.Warning == "" && q.full() {
			u.Warning = q.sentence()
		}
	}
	return u, nil
}

// Close returns what was borrowed and not used. Reservations that nobody settled count as spent. Nothing is allowed after.
func (l *Ledger) Close(ctx context.Context) error {
	if !l.usable() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.spent, l.held, l.open = l.spent.plus(l.held), Amounts{}, nil
	rest := l.loan
	l.loan = Amounts{}
	if rest == (Amounts{}) {
		return nil
	}
	return l.bank.Return(ctx, l.day, rest)
}
