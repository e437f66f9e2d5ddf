// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"agentrun/telemetry/mask"
)

// Handler gives slog's handler for the log: JSON, one line for each record, everything masked.
func (l *Log) Handler() slog.Handler {
	return &handler{log: l, build: func(to *bytes.Buffer) slog.Handler {
		return slog.NewJSONHandler(to, &slog.HandlerOptions{Level: l.options.Level, ReplaceAttr: l.replace})
	}}
}

// handler encodes into a buffer of its own for each record, because a line has to be measured before it is written.
type handler struct {
	log *Log
	// build makes slog's handler with the attributes and groups so far.
	build func(*bytes.Buffer) slog.Handler
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.log.options.Level.Level()
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	attrs = slices.Clone(attrs)
	return h.with(func(next slog.Handler) slog.Handler { return next.WithAttrs(attrs) })
}

func (h *handler) WithGroup(name string) slog.Handler {
	name = h.log.options.Mask.Text(name)
	return h.with(func(next slog.Handler) slog.Handler { return next.WithGroup(name) })
}

func (h *handler) with(step func(slog.Handler) slog.Handler) slog.Handler {
	build := h.build
	return &handler{log: h.log, build: func(to *bytes.Buffer) slog.Handler { return step(build(to)) }}
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var line bytes.Buffer
	if err := h.build(&line).Handle(ctx, r); err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if limit := h.log.maxLine; line.Len() > limit {
		return h.log.write(h.log.shortened(r, line.Len(), limit), r.Level)
	}
	return h.log.write(line.Bytes(), r.Level)
}

// shortened keeps time, level, and what fits of the message: half an attribute could be half a secret.
func (l *Log) shortened(r slog.Record, length, limit int) []byte {
	message := l.options.Mask.Text(r.Message)
	// JSON may take 6 bytes for one.
	message = message[:min(len(message), (limit-256)/6)]
	b, err := json.Marshal(struct {
		Time    time.Time `json:"time"`
		Level   string    `json:"level"`
		Message string    `json:"msg"`
		Cut     int       `json:"cut_bytes"`
	}{r.Time.Round(0), r.Level.String(), message, length})
	if err != nil {
		b = []byte(`{"level":"ERROR","msg":"record could not be encoded"}`)
	}
	return append(b, '\n')
}

// replace masks one attribute. slog calls it for each that isn't a group, with the names of the groups around it.
func (l *Log) replace(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) && a.Value.Kind() != slog.KindString {
		return a
	}
	kind := mask.Sensitive(a.Key)
	for _, g := range groups {
		if kind == mask.Invalid {
			kind = mask.Sensitive(g)
		}
	}
	a.Key = l.options.Mask.Text(a.Key)
	a.Value = l.value(a.Value.Resolve(), kind)
	return a
}

func (l *Log) value(v slog.Value, under mask.Kind) slog.Value {
	if under != mask.Invalid && v.Kind() != slog.KindBool {
		return slog.StringValue(under.Mark())
	}
	m := l.options.Mask
	switch v.Kind() {
	case slog.KindBool, slog.KindDuration, slog.KindTime, slog.KindFloat64:
		return v
	case slog.KindInt64, slog.KindUint64:
		if s := v.String(); m.Text(s) != s { // a card number is one also as a number
			return slog.StringValue(m.Text(s))
		}
		return v
	case slog.KindString:
		return slog.StringValue(m.Text(v.String()))
	}
	switch x := v.Any().(type) {
	case nil:
		return v
	case error:
		return slog.StringValue(m.Text(safely(x.Error)))
	case []byte: // a body, most likely
		return slog.StringValue(fmt.Sprintf("%d bytes", len(x)))
	case json.RawMessage:
		return slog.StringValue(fmt.Sprintf("%d bytes", len(x)))
	default:
		return slog.AnyValue(json.RawMessage(l.encoded(x)))
	}
}

func safely(f func() string) (s string) {
	defer func() {
		if recover() != nil { // a nil *T that is an error
			s = "[panic]"
		}
	}()
	return f()
}

// encoded is x as masked JSON. What can't be encoded is named by its type: the error could have parts of it.
func (l *Log) encoded(x any) (out []byte) {
	defer func() {
		if out == nil || recover() != nil {
			out, _ = json.Marshal(fmt.Sprintf("[unprintable %T]", x))
		}
	}()
	b, err := json.Marshal(x)
	if err != nil {
		return nil
	}
	masked, err := l.options.Mask.JSON(b)
	if err != nil {
		return nil
	}
	return masked
}
