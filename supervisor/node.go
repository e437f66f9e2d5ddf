// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"agentrun/config"
	"agentrun/control"
	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/images"
	"agentrun/internal/rootless"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor/changes"
	"agentrun/supervisor/homes"
	"agentrun/supervisor/killhooks"
	"agentrun/supervisor/live"
	"agentrun/supervisor/outputs"
	"agentrun/telemetry/counts"
)

// Node is what flags, environment and configuration say of the node that a run belongs to. It is plain data.
type Node struct {
	StateDir     string // what lasts, as /var/lib/agentrun
	RunDir       string // what lives as long as a run, as /run/agentrun
	ProfileDirs  []string
	PlanFiles    []string // of agents' plans (M-19), besides the built-in ones
	Ranges       profiles.NodeRanges
	Own          []string         // agentrun's other folders on this host: no run is shown anything of them
	Config       string           // config.yaml by the name it was given; empty: the usual places
	GatewayFiles []string         // the node's gateway.yaml by config.yaml, whose policies no flag leaves out; empty: the usual one
	KeysRequired bool             // every run needs an agent's key (keys: required)
	SyncAll      bool             // every audit record is on disk before what it records goes on (audit.sync)
	Access       control.Access   // to the control API
	Codes        live.Codes       // where codes of safety loops are shown
	Git          Git              // who agents' commits are by
	Kill         killhooks.Config // programs that are run around a kill
	HomeConfig   homes.Config     // of what agents keep
	ImagePolicy  images.Policy    // which images it takes
	ApplyTime    time.Duration    // of a change of ring; 0: runtime's own
	Version      string           // of agentrun
	Operators    string           // file of the operators' public keys
	Log          *slog.Logger

	Signer *hypervisor.Signer // signs for the runs of this process; nil: each does for itself

	// Gateway is what was said of the gateway's program before this process entered a user namespace.
	Gateway Outside
}

// Flags are those that have another agentrun work on this node.
func (n *Node) Flags() []string {
	flags := []string{"--state-dir", n.StateDir, "--run-dir", n.RunDir}
	if n.Config != "" {
		flags = append(flags, "--config", n.Config)
	}
	return flags
}

// Steps writes the log's lines about the steps of a launch; nil where nobody reads them, as taking the time costs more than the line.
func (n *Node) Steps(what string) func(step string, took, cpu time.Duration) {
	if !n.Log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	return func(step string, took, cpu time.Duration) { n.Log.Debug(what, "step", step, "took", took, "cpu", cpu) }
}

// ReadGateway returns the gateway.yaml of a run that names this one, or none.
func (n *Node) ReadGateway(named string) (config.Gateway, error) {
	return config.ReadGateway(named, n.GatewayFiles, rootless.Is())
}

// Open opens the state. It checks nothing yet.
func (n *Node) Open() (*hypervisor.Hypervisor, error) { return hypervisor.Open(n.options()) }

func (n *Node) options() hypervisor.Options {
	return hypervisor.Options{
		StateDir: n.StateDir, Own: append(slices.Clone(n.Own), n.RunDir, runtime.SharedDir()),
		SyncAll: n.SyncAll, Plans: governance.Sources{Files: n.PlanFiles}, Signer: n.Signer,
	}
}

// NewSigner is one for many runs of this node.
func (n *Node) NewSigner() *hypervisor.Signer {
	return hypervisor.NewSigner(n.options(), func(err error) { n.Log.Warn("audit", "err", err) })
}

// Metrics writes the node's numbers, in the text format that Prometheus reads (M-20). The gauges are those that only a
// daemon knows.
func (n *Node) Metrics(w io.Writer, gauges ...counts.Gauge) error {
	live, err := runtime.CountLive(n.RunDir)
	if err != nil {
		return err
	}
	gauges = append([]counts.Gauge{{
		Name: "sandboxes_live", Help: "Sandboxes there are now, those that are ready for nobody yet among them.", Value: float64(live),
	}}, gauges...)
	return counts.Write(w, n.StateDir, gauges...)
}

// Outputs is the folder of what runs leave for people.
func (n *Node) Outputs() outputs.Folder { return outputs.Folder{StateDir: n.StateDir, Log: n.Log} }

// Changes is the folder of what runs have changed in an overlaid workspace.
func (n *Node) Changes() changes.Folder { return changes.Folder{StateDir: n.StateDir} }

// Homes is the folder of what agents keep from one run to the next.
func (n *Node) Homes() homes.Folder { return homes.Folder{StateDir: n.StateDir, Config: n.HomeConfig} }

// Images is the folder of unpacked container images.
func (n *Node) Images() images.Folder { return images.Folder{StateDir: n.StateDir} }

// FilterCache is where compiled filters are kept.
func (n *Node) FilterCache() string { return filepath.Join(n.StateDir, "seccomp") }

// NoFilterCache is told why they aren't.
func (n *Node) NoFilterCache(err error) { n.Log.Info("compiled filters are not kept", "err", err) }

// ControlDir is where in the run folder the control sockets are.
func (n *Node) ControlDir() string { return filepath.Join(n.RunDir, "control") }

// Collect removes what crashed supervisors left, their control sockets too. A start doesn't try every socket
// there is: a supervisor that died left a run as well, and only then its socket is looked for, unless all is
// asked for.
func (n *Node) Collect(ctx context.Context, all bool) (removed []string, err error) {
	hypervisor.DropUndos(n.StateDir, time.Now())
	removed, err = runtime.Collect(ctx, n.RunDir, all)
	if len(removed) > 0 {
		counts.At(n.StateDir).Collected(len(removed))
	}
	if all || len(removed) > 0 {
		_, serr := control.Sweep(n.RunDir)
		err = errors.Join(err, serr, n.Changes().Prune(time.Now()))
	}
	return removed, err
}
