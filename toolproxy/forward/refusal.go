// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"

	"agentrun/internal/wire"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// refusal is a no, with all that the agent, the operator and the program in between need of it.
type refusal struct {
	status int
	code   rings.Code
	sub    egress.Reason
	text   string
	next   string
	entry  string
	addr   netip.Addr // that decided, if one did
	weight rings.Ring
}

const (
	nextAsk   = "use another host, or ask the operator to add this one with --allow"
	nextTool  = "use a tool instead: GET /internal/tools lists them"
	nextFix   = "correct the request"
	nextLater = "try again later"
)

// refused turns a decision that doesn't allow into a refusal.
func refused(d egress.Decision) *refusal {
	r := &refusal{status: 403, code: d.Code, sub: d.Sub, text: d.Reason, next: nextAsk, entry: d.Entry, addr: d.Addr}
	if r.code == "" || r.code == rings.CodeOK {
		r.code, r.text = egress.CodeEgressDenied, "nothing allows it"
	}
	switch d.Sub {
	case egress.RingHasNoEgress:
		r.next, r.weight = nextTool, rings.Standard
	case egress.DatabasePort, egress.MetadataAddress, egress.PrivateAddress, egress.OwnAddress, egress.RouteForbidden:
		r.next, r.weight = nextTool, rings.Privileged
	case egress.NameMismatch, egress.HiddenName, egress.BadName, egress.BadAuthority, egress.BadPort, egress.BadMethod, egress.BadPath,
		egress.BadRequestTarget, egress.BadClientHello:
		r.next = nextFix
	}
	return r
}

// misread refuses what could be read in two ways, or names another place.
func misread(sub egress.Reason, format string, args ...any) *refusal {
	return refused(egress.Denied(&egress.Refusal{Sub: sub, Text: fmt.Sprintf(format, args...)}))
}

// badRequest refuses a message that package wire doesn't take.
func badRequest(w *wire.Error) *refusal {
	return &refusal{status: w.Status, code: gate.CodeBadRequest, sub: "bad_message", text: w.Text, next: nextFix}
}

// unavailable is for what is allowed and doesn't work. The cause goes to the log, not to the agent.
func unavailable(status int, sub egress.Reason, format string, args ...any) *refusal {
	return &refusal{status: status, code: gate.CodeUnavailable, sub: sub, text: fmt.Sprintf(format, args...), next: nextLater}
}

// Reasons beside those of package egress.
const (
	lookupNoAnswer egress.Reason = "lookup_no_answer"
	dialRefused    egress.Reason = "upstream_unreachable"
	upstreamBad    egress.Reason = "upstream_bad_reply"
	upstreamTLS    egress.Reason = "upstream_tls"
	noRecords      egress.Reason = "audit_unavailable"
	spent          egress.Reason = "limit_reached"
	notTLS         egress.Reason = "not_tls"
	ended          egress.Reason = "run_ended"
)

// reply is the whole HTTP response (M-13). What is quoted in its text was cut and escaped by egress.
func (r *refusal) reply(head, closing bool) []byte {
	body, err := json.Marshal(struct {
		OK    bool       `json:"ok"`
		Error gate.Error `json:"error"`
	}{Error: gate.Error{Code: r.code, Message: r.text, Next: r.next}})
	if err != nil {
		body = []byte(`{"ok":false,"error":{"code":"egress_denied"}}`)
	}
	body = append(body, '\n')
	b := fmt.Appendf(make([]byte, 0, 512), "HTTP/1.1 %d %s\r\n", r.status, http.StatusText(r.status))
	b = fmt.Appendf(b, deniedHeader+": %s\r\n", r.code)
	if r.sub != "" {
		b = fmt.Appendf(b, reasonHeader+": %s\r\n", r.sub)
	}
	b = fmt.Appendf(b, "Content-Type: application/json\r\nCache-Control: no-store\r\nContent-Length: %d\r\n", len(body))
	if closing {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "\r\n"...)
	if head {
		return b
	}
	return append(b, body...)
}

// refuse puts a refusal on record, before the agent hears of it. Refusals beyond the pace are told later: to
// the agent they are the cheapest thing there is, and each costs us a parser, a decision and an answer.
func (p *Proxy) refuse(name string, r *refusal) {
	if len(name) > 255 {
		name = name[:255]
	}
	rec := link.Record{Kind: "egress", Name: name, Code: r.code, Rule: r.entry, Detail: string(r.sub), Count: 1, Weight: r.weight}
	if r.addr.IsValid() {
		rec.Address = r.addr.String()
	}
	p.ledger.deny(rec)
	p.pace.Wait(p.ctx) // false: the run is over, and so is the connection
}
