// SPDX-License-Identifier: Apache-2.0

// Package sagafile reads sagas from YAML files and makes them runnable.
//
// It guarantees: a file either decodes to a File whose every field is within its limits, or gives all its problems, each
// with line and field; nothing is guessed, and what the format doesn't know is a problem. A File survives the journal:
// Decode(f.Definition()) is f.
//
//	f, err := sagafile.Parse("trip.yaml", data, "/srv/trips")
//	saga, err := f.Saga(sagafile.Means{Runner: sandbox, API: client})
//	rec, err := orchestrator.Run(ctx, saga)
//
// Errors: *read.InvalidError is a file with problems. Saga's error is a step for which there are no means.
//
// It does not protect against what the author of the file wants: the commands run in the ring they name, the calls go
// where they say. It opens nothing and resolves no links.
//
// It fails closed: a file with a single problem gives no saga at all.
package sagafile
