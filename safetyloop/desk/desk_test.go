// SPDX-License-Identifier: Apache-2.0

package desk_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/control"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
	"agentrun/telemetry"
)

const code = "K3X7-code-of-the-test"

// fake has one challenge, one confirmation and one block.
type fake struct {
	said   []string
	unread bool
}

func (f *fake) Challenges(context.Context) []safetyloop.Challenge {
	return []safetyloop.Challenge{{ID: "6f1d", Agent: "local/planner", Kind: "verify", Hint: "rm", Created: time.Unix(1, 0), Expires: time.Unix(300, 0), Code: telemetry.NewPlaintext(code)}}
}

func (f *fake) Show(_ context.Context, by, id string) (safetyloop.Challenge, error) {
	f.said = append(f.said, "show "+by+" "+id)
	if id != "6f1d" {
		return safetyloop.Challenge{}, fmt.Errorf("challenge: %w", safetyloop.ErrNotFound)
	}
	return f.Challenges(context.Background())[0], nil
}

func (f *fake) Verify(_ context.Context, by, id, got string) error {
	f.said = append(f.said, "verify "+by+" "+id)
	if got != code {
		return safetyloop.ErrCode
	}
	return nil
}

func (f *fake) Pending(context.Context) []safetyloop.Pending {
	return []safetyloop.Pending{{Token: "t1", Principal: "p", Operation: "execute_agent"}}
}

func (f *fake) Confirm(_ context.Context, by, token string) error {
	f.said = append(f.said, "confirm "+by+" "+token)
	return nil
}

func (f *fake) Blocks(context.Context) ([]safetyloop.Block, error) {
	if f.unread {
		return nil, errors.New("bad page")
	}
	return []safetyloop.Block{{Agent: "local/planner", Reason: "deny"}}, nil
}

func (f *fake) Unblock(_ context.Context, by, agent, reason string) error {
	f.said = append(f.said, "unblock "+by+" "+agent+" "+reason)
	return nil
}

// runs is a supervisor's other half.
type runs struct{ control.Controller }

func (runs) Sandboxes(context.Context) ([]control.Sandbox, error) { return nil, nil }

func listen(t *testing.T, runDir, name string, more []control.Route) {
	t.Helper()
	l, err := control.Listen(runDir, name, control.Access{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&control.Server{Controller: runs{}, More: more}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestS10OperatorsReachEveryLoop(t *testing.T) {
	runDir, f := filepath.Join(t.TempDir(), "run"), &fake{}
	listen(t, runDir, "run-without-a-loop", nil)
	listen(t, runDir, "safety-1", desk.Routes(f))
	found, err := desk.Challenges(t.Context(), runDir)
	if err != nil || len(found) != 1 || found[0].Loop != "safety-1" || found[0].ID != "6f1d" || found[0].Hint != "rm" {
		t.Fatalf("got %+v, %v", found, err)
	}
	if found[0].Code.Reveal() != "" {
		t.Error("the list has the code")
	}
	by := found[0].By
	shown, err := by.Show(t.Context(), "6f1d")
	if err != nil || shown.Code != code || shown.Challenge.Code.Reveal() != code {
		t.Errorf("got %+v, %v", shown.Challenge, err)
	}
	pending, err := desk.Confirmations(t.Context(), runDir)
	if err != nil || len(pending) != 1 || pending[0].Token != "t1" {
		t.Errorf("got %+v, %v", pending, err)
	}
	blocks, err := desk.Blocks(t.Context(), runDir)
	if err != nil || len(blocks) != 1 || blocks[0].Agent != "local/planner" {
		t.Errorf("got %+v, %v", blocks, err)
	}
	for what, err := range map[string]error{
		"verify": by.Verify(t.Context(), "6f1d", code), "confirm": by.Confirm(t.Context(), "t1"), "unblock": by.Unblock(t.Context(), "local/planner", "false alarm"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, said := range f.said {
		if !strings.Contains(said, " uid:") || strings.Contains(said, code) {
			t.Errorf("got %q, want who asked by the kernel's word", said)
		}
	}
	for want, err := range map[string]error{
		desk.CodeWrong:         by.Verify(t.Context(), "6f1d", "wrong"),
		control.CodeNotFound:   func() error { _, err := by.Show(t.Context(), "none"); return err }(),
		control.CodeBadRequest: by.Verify(t.Context(), "6f1d", ""),
	} {
		if e, ok := errors.AsType[*control.Error](err); !ok || e.Code != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestS8UnreadableBlocksAreSaidToBeAll(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "run")
	listen(t, runDir, "safety-1", desk.Routes(&fake{unread: true}))
	_, err := desk.Blocks(t.Context(), runDir)
	if e, ok := errors.AsType[*control.Error](err); !ok || e.Code != desk.CodeAll {
		t.Errorf("got %v, want %s", err, desk.CodeAll)
	}
}

// A code is only in the answer to a POST: members of a group that may read get none of it.
func TestS10ReadersGetNoCode(t *testing.T) {
	var reads []string
	for _, r := range desk.Routes(&fake{}) {
		if r.Method == "GET" {
			reads = append(reads, r.Path)
		}
	}
	if d := cmp.Diff([]string{"/v1/safety/challenges", "/v1/safety/pending", "/v1/safety/blocks"}, reads); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	runDir := filepath.Join(t.TempDir(), "run")
	listen(t, runDir, "safety-1", desk.Routes(&fake{}))
	for _, request := range []string{"GET /v1/safety/challenges", "GET /v1/safety/challenges/6f1d/show", "GET /v1/safety/pending", "POST /v1/safety/challenges/none/show", "POST /v1/safety/challenges/6f1d/verify"} {
		c, err := net.Dial("unix", filepath.Join(runDir, "control", "safety-1.sock"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", request)
		b := make([]byte, 4096)
		n := 0
		for err == nil && n < len(b) {
			var m int
			m, err = c.Read(b[n:])
			n += m
		}
		c.Close()
		if strings.Contains(string(b[:n]), code) || n == 0 {
			t.Errorf("%s: got %s", request, b[:n])
		}
	}
}
