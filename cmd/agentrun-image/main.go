// SPDX-License-Identifier: Apache-2.0

// Command agentrun-image brings container images: from registries, OCI layouts and archives. `agentrun image pull` and `import`
// start it, since it has what a run's supervisor must not have: an HTTP client, and readers of what strangers have packed. It is
// given an order, writes below one folder, and answers; what becomes of that is agentrun's to decide and to record.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"agentrun/images"
	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
)

// maxOrder bounds an order: a key and some names.
const maxOrder = 1 << 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(ending.Report(os.Stderr, run(ctx, os.Stdin, os.Stdout), ending.Hint))
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(io.LimitReader(in, maxOrder))
	if err != nil {
		return err
	}
	var o images.Order
	if err := read.Exactly(text, &o); err != nil {
		return hinted.New(errors.New(images.Program+" is started by agentrun image"), "agentrun image --help")
	}
	result, err := carryOut(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}
