// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// What one run wrote or read is in no buffer that another gets, however much of it there was and whoever went away.
func TestBuffersAreGivenBackEmpty(t *testing.T) {
	var (
		mu   sync.Mutex
		made []*buffer
	)
	old := buffers.New
	buffers = sync.Pool{New: func() any {
		mu.Lock()
		defer mu.Unlock()
		b := new(buffer)
		made = append(made, b)
		return b
	}}
	t.Cleanup(func() { buffers = sync.Pool{New: old} })
	for name, c := range map[string]struct {
		in, out string
		to      io.Writer
		limit   int64
	}{
		"little":                {"in", "out", io.Discard, 1 << 20},
		"more than a buffer":    {strings.Repeat("i", 100<<10), strings.Repeat("o", 100<<10), io.Discard, 1 << 20},
		"past the limit":        {"", strings.Repeat("o", 50<<10), io.Discard, 3},
		"a reader that is gone": {"", strings.Repeat("o", 50<<10), goneWriter{}, 1 << 20},
	} {
		s, err := newPipes(os.Getuid(), os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		in, out, errs := s.in, s.out, s.err // the ends of an agent
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, in)
			_, _ = io.WriteString(out, c.out)
			_, _ = io.WriteString(errs, c.out)
			out.Close()
			errs.Close()
		}()
		s.pump(strings.NewReader(c.in), c.to, c.to, c.limit, func() {})
		s.wg.Wait()
		<-done
		s.closeAll()
		mu.Lock()
		for i, b := range made {
			if rest := strings.TrimLeft(string(b[:]), "\x00"); rest != "" {
				t.Errorf("%s: buffer %d of %d has %.20q… left", name, i, len(made), rest)
			}
		}
		if len(made) == 0 {
			t.Error("no buffer was made")
		}
		mu.Unlock()
	}
}

type goneWriter struct{}

func (goneWriter) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }
