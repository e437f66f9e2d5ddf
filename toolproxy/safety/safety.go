// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"agentrun/safetyloop/judge"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Gate is what gate.Gate offers.
type Gate interface {
	AskSafety(ctx context.Context) *gate.Error
}

// Loop is what link.Safeties offers for an agent's requests.
type Loop interface {
	Safety(ctx context.Context, s link.Safety) (json.RawMessage, error)
}

// Options of New.
type Options struct {
	Gate    Gate          // required
	Loop    Loop          // required
	Judge   judge.Judge   // of hints: the operator's policy and the score. Required where Mode evaluates
	Mode    judge.Mode    // of the run's loop; required
	Timeout time.Duration // of one request, once it has passed the gate; 0: 45 s, which is longer than the loop's own
	Log     *slog.Logger  // for the operator; nil: nothing is logged. Hints aren't
}

// Handler serves the routes, and the tools at /mcp. Make it with New.
type Handler struct {
	o       Options
	judging chan struct{}
	known   known
}

const (
	// MaxBody bounds a request's body, and a tool's arguments, in bytes: what is around the parameters isn't much.
	MaxBody = link.MaxSafetyParams + 4<<10

	defaultTimeout = 45 * time.Second
	// A hint at all bounds takes seconds to judge. More at once would take the gateway from the run's other calls.
	maxJudging = 2
	judgeTime  = 5 * time.Second
)

// New returns the handler; the error names the option.
func New(o Options) (*Handler, error) {
	evaluates := o.Mode == judge.Enforcing || o.Mode == judge.Monitoring
	switch {
	case o.Gate == nil || o.Loop == nil:
		return nil, errors.New("safety loop: no gate, or no loop")
	case !evaluates && o.Mode != judge.Logging && o.Mode != judge.Disabled:
		return nil, errors.New("safety loop: no mode")
	case evaluates && o.Judge == nil:
		return nil, fmt.Errorf("safety loop in mode %s: nobody judges hints", o.Mode)
	}
	if !evaluates {
		o.Judge = nil // nothing is evaluated, so nothing is judged
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{o: o, judging: make(chan struct{}, maxJudging)}, nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	route, _ := tools.RouteOf(req.Context())
	endpoint := endpointOf(route.Rest)
	switch {
	case endpoint == judge.NoEndpoint:
		tools.WriteError(w, &gate.Error{Code: gate.CodeNotFound, Message: "there is no such route", Next: "use /internal/safety/create, read or execute"})
		return
	case req.URL.RawQuery != "":
		tools.WriteError(w, &gate.Error{Code: gate.CodeBadRequest, Message: "this route takes no query", Next: nextRequest})
		return
	case req.Method != http.MethodPost:
		tools.WrongMethod(w, http.MethodPost)
		return
	}
	if e := tools.JSONBody(req); e != nil {
		e.Next = nextRequest
		tools.WriteError(w, e)
		return
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, MaxBody+1))
	if err != nil {
		tools.WriteError(w, &gate.Error{Code: gate.CodeBadRequest, Message: "the body broke off", Next: nextRequest, Cause: err})
		return
	}
	a := h.do(req.Context(), endpoint, body)
	a.write(w)
}

const nextRequest = `send {"operation":"introspect","params":{}} as application/json to /internal/safety/read`

func endpointOf(rest string) judge.Endpoint {
	switch rest {
	case "create":
		return judge.Create
	case "read":
		return judge.Read
	case "execute":
		return judge.Execute
	}
	return judge.NoEndpoint
}

// do is one request, by whichever way it came.
func (h *Handler) do(ctx context.Context, endpoint judge.Endpoint, body []byte) (a answer) {
	defer func() {
		if v := recover(); v != nil {
			h.o.Log.Error("a request to the safety loop broke off", "panic", fmt.Sprintf("%T", v)) // its text may have the hint in it
			a = internal()
		}
	}()
	if e := h.o.Gate.AskSafety(ctx); e != nil {
		return ofGate(e)
	}
	q, refused := decode(body)
	if refused != nil {
		return *refused
	}
	// A step that could be taken back as soon as it is told would be a way to try out what stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.o.Timeout)
	defer cancel()
	s := link.Safety{Endpoint: endpoint.String(), Operation: q.Operation, Params: q.Params}
	if hint, ok := toJudge(q, endpoint); ok && h.o.Judge != nil {
		s.Judgement, s.Judged = h.judge(ctx, hint)
	}
	reply, err := h.o.Loop.Safety(ctx, s)
	if err != nil {
		h.o.Log.Error("the safety loop gave no answer", "err", gate.CauseOf(err))
		return internal()
	}
	return ofLoop(reply)
}

// judge gives what the hint says and which hint that was, nil where it can't be judged: the loop then pauses the agent, or refuses
// the parameters.
func (h *Handler) judge(ctx context.Context, hint string) (_ *judge.Judgement, judged string) {
	ctx, cancel := context.WithTimeout(ctx, judgeTime)
	defer cancel()
	select {
	case h.judging <- struct{}{}:
		defer func() { <-h.judging }()
	case <-ctx.Done():
		h.o.Log.Warn("a hint wasn't judged: others took all the time")
		return nil, ""
	}
	j, err := h.judged(ctx, hint)
	if err != nil {
		h.o.Log.Warn("a hint wasn't judged", "bytes", len(hint), "err", gate.CauseOf(err))
		return nil, ""
	}
	return &j, link.HintSum(hint)
}

// judged keeps a fault of the judge's what it is: a step that nobody could judge, and not one that nobody was asked about.
func (h *Handler) judged(ctx context.Context, hint string) (j judge.Judgement, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("judge: panic of type %T", v) // its text may have the hint in it
		}
	}()
	if j, err = h.o.Judge.Judge(ctx, hint); err != nil {
		return judge.Judgement{}, err
	}
	return fit(j), nil
}

// Bounds of a judgement on the link.
const (
	maxText    = 512
	maxFactors = 32
)

// fit keeps a judgement within what the link takes. A target that is cut would be another one, so it is left out: a call then has to
// be named by the hint itself.
func fit(j judge.Judgement) judge.Judgement {
	if len(j.Verb) > maxText {
		j.Verb = ""
	}
	if len(j.Target) > link.MaxSafetyTarget {
		j.Target = ""
	}
	j.Pattern = cut(j.Pattern)
	factors := make([]judge.Factor, 0, min(len(j.Factors), maxFactors))
	for _, f := range j.Factors[:min(len(j.Factors), maxFactors)] {
		f.Name, f.Detail = cut(f.Name), cut(f.Detail)
		factors = append(factors, f)
	}
	j.Factors = factors
	return j
}
