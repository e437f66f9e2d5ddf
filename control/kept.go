// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"time"

	"agentrun/internal/uhttp"
)

// Kept is a sandbox that outlives its runs, of the daemon's node. Its live run is also among the runs, by its name.
type Kept struct {
	Name     string    `json:"name"`
	By       string    `json:"by"` // who made it, as "uid:0"
	Created  time.Time `json:"created"`
	Until    time.Time `json:"until,omitzero"` // then agentrun gc removes it, if it isn't running; absent: never
	Ring     int       `json:"ring"`           // of its starts, as it was created
	Restart  string    `json:"restart"`        // no, on-failure, always
	Quota    int64     `json:"quota_bytes"`
	Dir      string    `json:"dir"` // that relative paths of its options start from
	Command  []string  `json:"command"`
	Wanted   bool      `json:"wanted"` // it was started, and nobody has stopped it since
	Live     bool      `json:"live"`   // a run has it
	Run      string    `json:"run_id,omitempty"`
	Began    time.Time `json:"began,omitzero"` // of that run, or the last one
	Restarts int       `json:"restarts,omitempty"`

	Sealed    int64          `json:"sealed_bytes,omitempty"` // in the layers below its own
	Snapshots []KeptSnapshot `json:"snapshots,omitempty"`
}

// KeptSnapshot is what the files of a kept sandbox were.
type KeptSnapshot struct {
	Name   string    `json:"name"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Bytes  int64     `json:"bytes"`
	Layers int       `json:"layers"`
}

// KeptList is what GET /v1/kept answers.
type KeptList struct {
	Sandboxes []Kept `json:"sandboxes"`
}

// KeptRequest asks for one to be made.
type KeptRequest struct {
	Name    string   `json:"name" read:"required"`
	Command []string `json:"command,omitempty"` // empty: it waits for what Exec brings
	// Options are the flags of agentrun create by their names, as ring, workspace, restart, keep-for.
	Options map[string]json.RawMessage `json:"options,omitempty"`
	Dir     string                     `json:"dir,omitempty"`     // that relative paths start from; absolute; empty: /
	Environ []string                   `json:"environ,omitempty"` // NAME=VALUE: what a check of the options needs; it isn't kept
}

// KeptStart is the body of POST /v1/kept/{id}/start.
type KeptStart struct {
	Environ []string `json:"environ,omitempty"` // NAME=VALUE; the caller's, which env-pass and secrets are taken from
}

// KeptStarted is a start's run.
type KeptStarted struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Output string `json:"output"` // file of its output
}

// KeptStop is the body of POST /v1/kept/{id}/stop.
type KeptStop struct {
	Grace time.Duration `json:"grace_ns,omitempty"` // between SIGTERM and the kill; 0: none
}

// KeptRename is the body of POST /v1/kept/{id}/rename.
type KeptRename struct {
	To string `json:"to" read:"required"`
}

// KeptFor is the body of POST /v1/kept/{id}/keep.
type KeptFor struct {
	For time.Duration `json:"for_ns" read:"required"` // from now; 0: until it is removed
}

// KeptRemoval is the body of DELETE /v1/kept/{id}.
type KeptRemoval struct {
	Force bool `json:"force,omitempty"` // its run is killed first
}

// KeptSnapshotName is the body of POST and DELETE /v1/kept/{id}/snapshot, and of POST /v1/kept/{id}/rollback.
type KeptSnapshotName struct {
	Name string `json:"name" read:"required"`
}

// KeptFork is the body of POST /v1/kept/{id}/fork.
type KeptFork struct {
	To       string        `json:"to" read:"required"`
	Snapshot string        `json:"snapshot,omitempty"` // empty: what it has now
	For      time.Duration `json:"for_ns,omitempty"`   // that the new one is kept; 0: until it is removed
}

func keptPath(name string) string { return "/v1/kept/" + uhttp.Escape(name) }

// Kept lists the kept sandboxes of the daemon's node, by name. Of these methods only a daemon's Client has any.
func (c *Client) Kept(ctx context.Context) ([]Kept, error) {
	var l KeptList
	err := c.Ask(ctx, "GET", "/v1/kept", nil, &l)
	return l.Sandboxes, err
}

// KeptOne is one of them.
func (c *Client) KeptOne(ctx context.Context, name string) (k Kept, err error) {
	return k, c.Ask(ctx, "GET", keptPath(name), nil, &k)
}

// CreateKept makes one that is stopped. A start that would be refused is refused here.
func (c *Client) CreateKept(ctx context.Context, r KeptRequest) (k Kept, err error) {
	return k, c.Ask(ctx, "POST", "/v1/kept", r, &k)
}

// StartKept returns when the first process of its run has been executed.
func (c *Client) StartKept(ctx context.Context, name string, r KeptStart) (s KeptStarted, err error) {
	return s, c.Ask(ctx, "POST", keptPath(name)+"/start", r, &s)
}

// StopKept returns when it has no run, and needn't have had one.
func (c *Client) StopKept(ctx context.Context, name string, grace time.Duration) error {
	return c.Ask(ctx, "POST", keptPath(name)+"/stop", KeptStop{grace}, nil)
}

// RenameKept is of one that isn't running.
func (c *Client) RenameKept(ctx context.Context, name, to string) error {
	return c.Ask(ctx, "POST", keptPath(name)+"/rename", KeptRename{to}, nil)
}

// KeepKept says for how long from now it is kept; 0: until it is removed.
func (c *Client) KeepKept(ctx context.Context, name string, d time.Duration) (k Kept, err error) {
	return k, c.Ask(ctx, "POST", keptPath(name)+"/keep", KeptFor{d}, &k)
}

// RemoveKept deletes it with its files. force: also if it is running.
func (c *Client) RemoveKept(ctx context.Context, name string, force bool) error {
	return c.Ask(ctx, "DELETE", keptPath(name), KeptRemoval{force}, nil)
}

// SnapshotKept keeps what it has now under a name. One that runs is paused meanwhile.
func (c *Client) SnapshotKept(ctx context.Context, name, snapshot string) (k Kept, err error) {
	return k, c.Ask(ctx, "POST", keptPath(name)+"/snapshot", KeptSnapshotName{snapshot}, &k)
}

// DropKeptSnapshot forgets a snapshot.
func (c *Client) DropKeptSnapshot(ctx context.Context, name, snapshot string) error {
	return c.Ask(ctx, "DELETE", keptPath(name)+"/snapshot", KeptSnapshotName{snapshot}, nil)
}

// RollbackKept gives one that isn't running what a snapshot has.
func (c *Client) RollbackKept(ctx context.Context, name, snapshot string) (k Kept, err error) {
	return k, c.Ask(ctx, "POST", keptPath(name)+"/rollback", KeptSnapshotName{snapshot}, &k)
}

// ForkKept makes another one with its files, stopped.
func (c *Client) ForkKept(ctx context.Context, name string, f KeptFork) (k Kept, err error) {
	return k, c.Ask(ctx, "POST", keptPath(name)+"/fork", f, &k)
}
