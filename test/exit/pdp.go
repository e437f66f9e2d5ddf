// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// PDP is a remote policy decision point (AuthZEN) that answers every question as it was last told to.
type PDP struct {
	Runs bool // moody about runs as well; else they are allowed
	mood atomic.Value
}

// Be sets how it answers: allow, deny, nonsense (HTML with status 200), string (a decision that is text), twice (two decisions
// in one answer), endless, hang.
func (p *PDP) Be(mood string) { p.mood.Store(mood) }

// ServeHTTP answers at /access/v1/evaluation. Before Be it denies.
func (p *PDP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/access/v1/evaluation" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	mood, _ := p.mood.Load().(string)
	if body, err := io.ReadAll(r.Body); err == nil && bytes.Contains(body, []byte("agent.run.invoke")) && !p.Runs {
		mood = "allow"
	}
	switch mood {
	case "allow":
		fmt.Fprint(w, `{"decision":true}`)
	case "nonsense":
		fmt.Fprint(w, "<html>decision: true</html>")
	case "string":
		fmt.Fprint(w, `{"decision":"true"}`)
	case "twice":
		fmt.Fprint(w, `{"decision":false,"decision":true}`)
	case "endless":
		for i := 0; i < 1<<20 && r.Context().Err() == nil; i++ {
			fmt.Fprint(w, strings.Repeat(" ", 4096))
		}
	case "hang":
		<-r.Context().Done()
	default:
		fmt.Fprint(w, `{"decision":false,"context":{"reason":"acl_block"}}`)
	}
}
