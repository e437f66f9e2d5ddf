// SPDX-License-Identifier: Apache-2.0

package safetyloop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/safetyloop"
	"agentrun/store"
	"agentrun/telemetry"
)

// careful knows one word. A real Judge is policy.Watcher.
type careful struct{}

func (careful) Judge(_ context.Context, hint string) (safetyloop.Judgement, error) {
	if strings.Contains(hint, "drop") {
		return safetyloop.Judgement{Rule: safetyloop.RuleDeny, Pattern: "*drop*", Score: 80}, nil
	}
	return safetyloop.Judgement{Rule: safetyloop.RuleDefault, Score: 10}, nil
}

type nowhere struct{}

func (nowhere) Record(context.Context, string, audit.Record) error { return nil }

func Example() {
	loop, err := safetyloop.New(safetyloop.Settings{
		Mode: safetyloop.Enforcing, Tolerance: safetyloop.Moderate, MaxSteps: 50, Confirm: safetyloop.ConfirmClient,
		Store: store.NewMemory(), Record: nowhere{}, Judge: careful{}, Now: time.Now,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer loop.Close()
	for _, hint := range []string{"read notes.txt", "drop table users", "read notes.txt"} {
		reply := loop.Do(context.Background(), safetyloop.Call{
			Caller: safetyloop.Caller{Principal: "stdio"}, Endpoint: safetyloop.Create, Operation: "record_execution_step",
			Params: telemetry.NewPlaintext(json.RawMessage(fmt.Sprintf(`{"element_name":"planner","nextActionHint":%q}`, hint))),
		})
		d := reply.Data.(safetyloop.Directive)
		fmt.Println(hint, "continue:", d.Continue, "stopped:", d.Stopped)
	}
	waiting := loop.Challenges(context.Background())[0]
	open, err := loop.Show(context.Background(), "uid:0", waiting.ID) // on the operator's side
	if err != nil {
		log.Fatal(err)
	}
	err = loop.Verify(context.Background(), "uid:0", open.ID, open.Code.Reveal())
	fmt.Println(waiting.Kind, waiting.Agent, "verified:", err == nil)
	// Output:
	// read notes.txt continue: true stopped: false
	// drop table users continue: false stopped: true
	// read notes.txt continue: false stopped: true
	// danger_zone stdio/planner verified: true
}
