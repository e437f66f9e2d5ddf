// SPDX-License-Identifier: Apache-2.0

package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentrun/telemetry"
	"agentrun/telemetry/mask"
)

func folder(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "logs")
}

func create(t testing.TB, dir, id string, o Options) *Log {
	t.Helper()
	l, err := Create(dir, id, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func content(t testing.TB, dir, id string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, id+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type stringerError struct{}

func (*stringerError) Error() string { panic("nil error") }

type unprintable struct{ F func() }

func TestM18EverythingIsMasked(t *testing.T) {
	dir := folder(t)
	l := create(t, dir, "run-1", Options{Mask: mask.New(mask.Options{Known: []string{"injected-key"}})})
	key := "ghp" + "_" + strings.Repeat("a1", 18)
	log := slog.New(l.Handler()).With("with", key, "password", "hunter2").WithGroup("group").With("mail", "a@b.example")
	log.Info("got "+key,
		"s", "Bearer 0123456789hunter2", "token", "hunter2", "n", 4111111111111111, "err", fmt.Errorf("call: %w", errors.New("password=hunter2")),
		"struct", struct {
			APIKey string `json:"api_key"`
			Text   telemetry.Plaintext[string]
		}{"hunter2", telemetry.NewPlaintext("hunter2")},
		"plain", telemetry.NewPlaintext("hunter2"), "body", []byte("hunter2"), "raw", json.RawMessage(`"hunter2"`),
		slog.Group("credentials", "user", "hunter2"), "map", map[string]any{"x": key, "cookie": "hunter2"}, "a@b.example", 1,
		"known", "xinjected-keyx", "nilerr", (*stringerError)(nil), "unprintable", unprintable{}, "nil", nil,
		"d", time.Second, "kept", "da39a3ee5e6b4b0d3255bfef95601890afd80709")
	log.WithGroup("secret").Info("x", "inner", "hunter2")
	log.WithGroup("a@b.example").Info("x", "inner", "y")
	if err := l.Finish(Succeeded); err != nil {
		t.Fatal(err)
	}
	got := content(t, dir, "run-1")
	for _, secret := range []string{key, "hunter2", "a@b.example", "4111111111111111", "injected-key", "aHVudGVyMg"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q stands in the log:\n%s", secret, got)
		}
	}
	for _, stays := range []string{`"kept":"da39a3ee5e6b4b0d3255bfef95601890afd80709"`, `"body":"7 bytes"`, `"plain":"[plaintext]"`, `"nilerr":"[panic]"`,
		`"unprintable":"[unprintable runlog.unprintable]"`, `"credentials":{"user":"[masked:secret]"}`} {
		if !strings.Contains(got, stays) {
			t.Errorf("%s is missing:\n%s", stays, got)
		}
	}
	for n, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("line %d is no JSON: %s", n+1, line)
		}
	}
}

func TestM18SecretsInAnyAttribute(t *testing.T) {
	dir, n := folder(t), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		secret := "Z9" + rapid.StringMatching(`[a-zA-Z0-9!%]{8,30}`).Draw(t, "secret")
		id := fmt.Sprint("r", n)
		l, err := Create(dir, id, Options{})
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(l.Handler())
		text := rapid.SampledFrom([]string{"password=%s", `{"api_key":"%s"}`, "x --token %s y", "https://u:%s@host.example/"}).Draw(t, "text")
		text = fmt.Sprintf(text, secret)
		switch rapid.IntRange(0, 5).Draw(t, "where") {
		case 0:
			log.Info(text)
		case 1:
			log.Info("m", "k", text)
		case 2:
			log.With("k", text).Info("m")
		case 3:
			log.Info("m", "k", []any{map[string]string{"a": text}})
		case 4:
			log.WithGroup("g").Info("m", "k", errors.New(text))
		case 5:
			log.Info("m", "password", secret)
		}
		if err := l.Finish(Succeeded); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, id+suffix))
		if err != nil || bytes.Contains(b, []byte(secret)) || !bytes.Contains(b, []byte("[masked:")) {
			t.Fatalf("%q: %s, %v", secret, b, err)
		}
	})
}

func TestM18LogIsPrivateAndNew(t *testing.T) {
	dir := folder(t)
	l := create(t, dir, "run-1", Options{})
	defer l.Finish(Failed)
	for name, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "run-1.jsonl"): 0o600} {
		if st, err := os.Lstat(name); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, st.Mode(), err, want)
		}
	}
	if _, err := Create(dir, "run-1", Options{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("the second log of a run: %v", err)
	}
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.Symlink(victim, filepath.Join(dir, "link.jsonl")); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, "link", Options{}); err == nil {
		t.Error("followed a symlink")
	}
	if _, err := os.Lstat(victim); err == nil {
		t.Error("made a file elsewhere")
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b", ".a", "a\n", "a\x00", strings.Repeat("a", 241), "é"} {
		if _, err := Create(dir, id, Options{}); err == nil {
			t.Errorf("%q is taken for an id", id)
		}
	}
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, "run-2", Options{}); err == nil {
		t.Error("took a folder that others may write")
	}
	if _, err := Sweep(dir, Policy{}, time.Now()); err == nil {
		t.Error("swept a folder that others may write")
	}
}

func TestM18OptionsAndPolicyAreChecked(t *testing.T) {
	for _, sample := range []float64{math.NaN(), -0.1, 1.1} {
		if _, err := Thin(folder(t), "run-1", Policy{Sample: &sample}); err == nil {
			t.Errorf("a sample of %v is taken", sample)
		}
	}
	for _, p := range []Policy{
		{Keep: 24*time.Hour - 1}, {Keep: 72*time.Hour + 1}, keeping(48*time.Hour, 47*time.Hour), keeping(24*time.Hour, 31*24*time.Hour),
		keeping(math.MinInt64, math.MaxInt64), {MaxMiB: 15}, {MaxMiB: -1}, {MaxMiB: maxMiB + 1},
	} {
		if _, err := Sweep(folder(t), p, time.Now()); !errors.Is(err, ErrPolicy) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, p := range []Policy{{}, keeping(24*time.Hour, 24*time.Hour), keeping(72*time.Hour, 30*24*time.Hour), {MaxMiB: 16}} {
		if _, err := Sweep(folder(t), p, time.Now()); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// An agent whose connections fail without end fills no file of 16 MiB in its minute; errors still find their place.
func TestM18FloodOfLinesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folder(t)
		l := create(t, dir, "run-1", Options{})
		log := slog.New(l.Handler())
		for range 60 {
			for range 500 {
				log.Info("egress: dial", "target", strings.Repeat("x", 100))
			}
			time.Sleep(time.Second)
		}
		log.Error("the reason")
		if err := l.Finish(Succeeded); err != nil {
			t.Fatal(err)
		}
		got := content(t, dir, "run-1")
		if len(got) > burst+61*perSecond || !strings.Contains(got, "the reason") {
			t.Errorf("%d bytes, want at most %d and the error", len(got), burst+61*perSecond)
		}
		var last struct {
			Dropped int `json:"dropped_records"`
		}
		lines := strings.Split(strings.TrimSpace(got), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-2]), &last); err != nil || last.Dropped+len(lines)-3 != 60*500 {
			t.Errorf("got %s, %d lines, want all accounted for", lines[len(lines)-2], len(lines))
		}
	})
}

func TestM18LinesAndFilesAreBounded(t *testing.T) {
	dir := folder(t)
	l := create(t, dir, "run-1", Options{})
	l.maxLine, l.maxFile = 1024, 2*reserve
	log := slog.New(l.Handler())
	log.Info(strings.Repeat("\x01", 5000)+"password=hunter2", "k", strings.Repeat("v", 5000))
	for range 1000 {
		log.Info(strings.Repeat("x", 900))
	}
	log.Error("the reason") // what matters fits though the file is full
	for range 1000 {
		log.Error(strings.Repeat("x", 900))
	}
	if err := l.Finish(Succeeded); err != nil {
		t.Fatal(err)
	}
	got := content(t, dir, "run-1")
	if len(got) > 2*reserve || !strings.Contains(got, "the reason") || !strings.Contains(got, `"dropped_records":`) || !strings.Contains(got, `"cut_bytes":`) ||
		strings.Contains(got, "hunter2") || !strings.HasSuffix(got, "\n"+endFailed) {
		t.Errorf("%d bytes, begins %.200s", len(got), got)
	}
	for s := bufio.NewScanner(strings.NewReader(got)); s.Scan(); {
		if len(s.Bytes()) > 1024 || !json.Valid(s.Bytes()) {
			t.Errorf("%d bytes: %.100s", len(s.Bytes()), s.Text())
		}
	}
}

func TestM20SamplingKeepsErrors(t *testing.T) {
	dir := folder(t)
	kept := 0
	for i := range 400 {
		l := create(t, dir, fmt.Sprint("run-", i), Options{})
		slog.New(l.Handler()).Info("x")
		if err := l.Finish(Succeeded); err != nil {
			t.Fatal(err)
		}
		deleted, err := Thin(dir, fmt.Sprint("run-", i), sampling(0.25))
		if err != nil {
			t.Fatal(err)
		}
		yes := !deleted
		_, err = os.Lstat(filepath.Join(dir, fmt.Sprint("run-", i, suffix)))
		if yes != (err == nil) {
			t.Fatalf("run %d: kept %v, %v", i, yes, err)
		}
		if yes {
			kept++
		}
	}
	if kept < 60 || kept > 140 {
		t.Errorf("%d of 400 kept, want about 100", kept)
	}
	for name, end := range map[string]func(*Log) error{
		"failed": func(l *Log) error { return l.Finish(Failed) },
		"error record": func(l *Log) error {
			slog.New(l.Handler()).Error("x")
			return l.Finish(Succeeded)
		},
		"unknown outcome": func(l *Log) error { return l.Finish(7) },
	} {
		l := create(t, dir, strings.ReplaceAll(name, " ", "-"), Options{})
		if err := end(l); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if deleted, err := Thin(dir, l.id, sampling(0)); deleted || err != nil {
			t.Errorf("%s: deleted %v, %v", name, deleted, err)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if sampled(id, 0) || !sampled(id, 1) {
			t.Errorf("%s: a share of 0 keeps, or of 1 doesn't", id)
		}
	}
}

func TestM18FinishedIsFinished(t *testing.T) {
	l := create(t, folder(t), "run-1", Options{})
	h := l.Handler()
	if err := l.Finish(Succeeded); err != nil {
		t.Fatal(err)
	}
	if err := l.Finish(Succeeded); !errors.Is(err, ErrFinished) {
		t.Error(err)
	}
	if err := h.Handle(t.Context(), slog.Record{}); !errors.Is(err, ErrFinished) {
		t.Error(err)
	}
}

var now = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// written makes a finished log whose last line is as old as age.
func written(t testing.TB, dir, id string, outcome Outcome, age time.Duration) {
	t.Helper()
	l := create(t, dir, id, Options{})
	slog.New(l.Handler()).Info("x")
	if err := l.Finish(outcome); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, id+suffix), now.Add(-age), now.Add(-age)); err != nil {
		t.Fatal(err)
	}
}

func left(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestM18SweepByAge(t *testing.T) {
	dir := folder(t)
	const hour = time.Hour
	written(t, dir, "ok-young", Succeeded, 48*hour)
	written(t, dir, "ok-old", Succeeded, 48*hour+time.Second)
	written(t, dir, "bad-young", Failed, 168*hour)
	written(t, dir, "bad-old", Failed, 168*hour+time.Second)
	written(t, dir, "a-little-ahead", Succeeded, -time.Minute)
	got, err := Sweep(dir, keeping(48*hour, 168*hour), now)
	if err != nil {
		t.Fatal(err)
	}
	freed := got.Freed
	got.Freed = 0
	if diff := cmp.Diff(Swept{Removed: 2, Kept: 3}, got); diff != "" || freed < 50 {
		t.Errorf("freed %d, -want +got:\n%s", freed, diff)
	}
	if diff := cmp.Diff([]string{"a-little-ahead.jsonl", "bad-young.jsonl", "ok-young.jsonl"}, left(t, dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A killed supervisor writes no last line. Its log is what somebody will want to read.
func TestM18CutLogIsAnError(t *testing.T) {
	for _, end := range []string{"", "{", endOK[:len(endOK)-1], "x" + endOK, endOK + "{", endOK + endFailed, `{"msg":"` + strings.TrimSpace(endOK) + "\"}\n", endFailed} {
		if good, err := endedWell(strings.NewReader(end), int64(len(end))); good || err != nil {
			t.Errorf("%q counts as ended well, %v", end, err)
		}
	}
	for _, end := range []string{endOK, "{}\n" + endOK} {
		if good, err := endedWell(strings.NewReader(end), int64(len(end))); !good || err != nil {
			t.Errorf("%q doesn't count as ended well, %v", end, err)
		}
	}
}

// A record can't pretend to be the end.
func TestM18EndCantBeForged(t *testing.T) {
	dir := folder(t)
	l := create(t, dir, "run-1", Options{})
	h := l.Handler()
	var r slog.Record
	r.Message = "x\n" + endOK
	r.AddAttrs(slog.String("run_ended", "ok"))
	if err := h.Handle(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	got := content(t, dir, "run-1")
	if good, err := endedWell(strings.NewReader(got), int64(len(got))); good || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_ = l.Finish(Failed)
}

func TestM18FileFromTheFutureAges(t *testing.T) {
	dir := folder(t)
	written(t, dir, "ahead", Succeeded, -10*365*24*time.Hour)
	p := keeping(24*time.Hour, 24*time.Hour)
	if got, err := Sweep(dir, p, now); err != nil || got.FromFuture != 1 || got.Kept != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := Sweep(dir, p, now.Add(23*time.Hour)); err != nil || got.Kept != 1 || got.FromFuture != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := Sweep(dir, p, now.Add(25*time.Hour)); err != nil || got.Removed != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestM18SweepTouchesNothingElse(t *testing.T) {
	dir, outside := folder(t), t.TempDir()
	written(t, dir, "old", Succeeded, 1000*time.Hour)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	long := now.Add(-10000 * time.Hour)
	victim := filepath.Join(outside, "victim.jsonl")
	must(os.WriteFile(victim, []byte("precious"), 0o600))
	must(os.Chtimes(victim, long, long))
	must(os.Symlink(victim, filepath.Join(dir, "link.jsonl")))
	must(os.Symlink(outside, filepath.Join(dir, "linkdir.jsonl")))
	must(os.Link(victim, filepath.Join(dir, "hardlink.jsonl")))
	must(os.Mkdir(filepath.Join(dir, "dir.jsonl"), 0o700))
	must(exec.Command("mkfifo", filepath.Join(dir, "fifo.jsonl")).Run())
	for _, name := range []string{"notes.txt", ".hidden.jsonl", "a b.jsonl", "public.jsonl"} {
		must(os.WriteFile(filepath.Join(dir, name), []byte("precious"), 0o600))
		must(os.Chtimes(filepath.Join(dir, name), long, long))
	}
	must(os.Chmod(filepath.Join(dir, "public.jsonl"), 0o644))
	before := len(left(t, dir))
	got, err := Sweep(dir, Policy{}, now)
	if err != nil || got.Removed != 1 || got.Foreign != before-1 || len(left(t, dir)) != before-1 {
		t.Errorf("%+v, %v, left %v", got, err, left(t, dir))
	}
	if b, err := os.ReadFile(victim); string(b) != "precious" || err != nil {
		t.Errorf("the file outside has %q, %v", b, err)
	}
	swapped := filepath.Join(outside, "logs")
	must(os.Symlink(dir, swapped))
	if _, err := Sweep(swapped, Policy{}, now); err == nil {
		t.Error("swept through a symlink")
	}
}

func TestM18LogInUseStays(t *testing.T) {
	dir := folder(t)
	l := create(t, dir, "long", Options{})
	if got, err := Sweep(dir, Policy{}, time.Now().Add(10000*time.Hour)); err != nil || got.InUse != 1 || got.Removed != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := l.Finish(Succeeded); err != nil {
		t.Fatal(err)
	}
	if got, err := Sweep(dir, Policy{}, time.Now().Add(10000*time.Hour)); err != nil || got.Removed != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Who has the file open finds it empty: that is what real deletion can mean here.
func TestM18DeletedIsEmptied(t *testing.T) {
	dir := folder(t)
	written(t, dir, "old", Succeeded, 1000*time.Hour)
	f, err := os.Open(filepath.Join(dir, "old.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := Sweep(dir, Policy{}, now); err != nil || got.Removed != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("%d bytes stay, %v", st.Size(), err)
	}
}

func TestM18SweepersAndWritersTogether(t *testing.T) {
	dir := folder(t)
	for i := range 100 {
		written(t, dir, fmt.Sprint("old-", i), Succeeded, 1000*time.Hour)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	removed := 0
	for range 4 {
		all.Go(func() {
			for range 5 {
				got, err := Sweep(dir, Policy{}, now)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				removed += got.Removed
				mu.Unlock()
			}
		})
	}
	for w := range 2 {
		all.Go(func() {
			for i := range 20 {
				l, err := Create(dir, fmt.Sprint("new-", w, "-", i), Options{})
				if err != nil {
					t.Error(err)
					return
				}
				log := slog.New(l.Handler())
				for range 4 {
					log.Info("x")
				}
				if err := l.Finish(Succeeded); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if removed != 100 || len(left(t, dir)) != 40 {
		t.Errorf("%d removed, %d left", removed, len(left(t, dir)))
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("password=x", "k", "v", int64(1))
	f.Add("\x00\xff", "", endOK, int64(4111111111111111))
	dir, n := folder(f), 0
	f.Fuzz(func(t *testing.T, msg, key, value string, number int64) {
		n++
		id := fmt.Sprint("f", os.Getpid(), "-", n)
		l := create(t, dir, id, Options{})
		l.maxLine = 1024
		slog.New(l.Handler()).Info(msg, key, value, "n", number, "any", map[string]any{key: value})
		got := content(t, dir, id)
		if strings.Count(got, "\n") != 1 || !json.Valid([]byte(got)) || len(got) > 1025 {
			t.Errorf("%q", got)
		}
		if err := l.Finish(Succeeded); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	l := create(b, folder(b), "run-1", Options{})
	l.maxFile = 1 << 40
	defer l.Finish(Failed)
	log := slog.New(l.Handler()).With("agent", "did:example:a1", "session", "s-1")
	b.ReportAllocs()
	for b.Loop() {
		log.Info("call finished", "tool", "search", "duration", 17*time.Millisecond, "args", telemetry.NewPlaintext("x"))
	}
}

func BenchmarkSweep1000Young(b *testing.B) {
	dir := folder(b)
	for i := range 1000 {
		written(b, dir, fmt.Sprint("r", i), Succeeded, time.Hour)
	}
	for b.Loop() {
		if _, err := Sweep(dir, Policy{}, now); err != nil {
			b.Fatal(err)
		}
	}
}

func keeping(good, errors time.Duration) Policy { return Policy{Keep: good, KeepErrors: errors} }

func sampling(share float64) Policy { return Policy{Sample: &share} }

// Where all logs are more than there is room for, the oldest go before their time: of runs that ended well first.
func TestM18SweepBySize(t *testing.T) {
	dir, now := folder(t), time.Now()
	for i, name := range []string{"failed-old", "good-old", "good-young", "failed-young", "good-now"} {
		l := create(t, dir, name, Options{})
		for range 5 << 10 {
			if _, err := l.file.WriteString(strings.Repeat("x", 1023) + "\n"); err != nil {
				t.Fatal(err)
			}
		}
		outcome := Failed
		if strings.HasPrefix(name, "good") {
			outcome = Succeeded
		}
		if err := l.Finish(outcome); err != nil {
			t.Fatal(err)
		}
		at := now.Add(time.Duration(i-5) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, name+suffix), at, at); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names = append(names, strings.TrimSuffix(e.Name(), suffix))
		}
		return names
	}
	for _, c := range []struct {
		mib  int64
		want []string
	}{
		{26, []string{"failed-old", "failed-young", "good-now", "good-old", "good-young"}},
		{21, []string{"failed-old", "failed-young", "good-now", "good-young"}},
		{16, []string{"failed-old", "failed-young", "good-now"}},
	} {
		got, err := Sweep(dir, Policy{MaxMiB: c.mib}, now)
		if names := left(); err != nil || !slices.Equal(names, c.want) || got.Kept != len(c.want) {
			t.Errorf("%d MiB: %v are left, want %v; %+v, %v", c.mib, names, c.want, got, err)
		}
	}
	for _, name := range []string{"failed-1", "failed-2"} { // nothing that ended well is left to go
		l := create(t, dir, name, Options{})
		if err := l.file.Truncate(9 << 20); err != nil {
			t.Fatal(err)
		}
		if err := l.Finish(Failed); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Sweep(dir, Policy{MaxMiB: 16}, now); err != nil || slices.Contains(left(), "failed-old") || slices.Contains(left(), "good-now") {
		t.Errorf("%v are left, %v", left(), err)
	}
}
