// SPDX-License-Identifier: Apache-2.0

package sagafile

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"agentrun/internal/read"
	"agentrun/sagas"
)

// Limits of a file.
const (
	MaxFileBytes  = 256 << 10
	maxArgs       = 1000
	maxArgBytes   = 64 << 10
	maxURLBytes   = 2000
	maxInputBytes = 64 << 10
	maxName       = 256

	// MaxCommandTimeout is the longest that a step's command can run: profiles.MaxTimeout, which a file doesn't know.
	MaxCommandTimeout = 300 * time.Second
)

// checker collects what is wrong with a file.
type checker struct{ errs []error }

func (d *checker) bad(path, format string, args ...any) {
	d.errs = append(d.errs, read.Bad(path, format, args...))
}

func (d *checker) check(f *File) {
	d.identifier("name", f.Name, true)
	d.identifier("agent", f.Agent, false)
	if f.Session != "" && !sessionID(f.Session) {
		d.bad("session", "%.80q is no session id: want letters, digits, _ and -, at most 256", f.Session)
	}
	if len(f.Steps) == 0 || len(f.Steps) > sagas.MaxSteps {
		d.bad("steps", "%d steps, want 1 to %d", len(f.Steps), sagas.MaxSteps)
	}
	first := map[string]int{}
	for i := range f.Steps {
		path := fmt.Sprintf("steps[%d]", i)
		d.step(path, &f.Steps[i])
		if j, twice := first[f.Steps[i].ID]; twice && f.Steps[i].ID != "" {
			d.bad(path+".id", "%q is the id of steps[%d] too", f.Steps[i].ID, j)
			continue
		}
		first[f.Steps[i].ID] = i
	}
}

func (d *checker) step(path string, s *Step) {
	d.identifier(path+".id", s.ID, true)
	switch has := count(s.Execute != nil, s.ExecuteAPI != ""); {
	case has == 0:
		d.bad(path, "does nothing: give execute or execute_api")
	case has == 2:
		d.bad(path, "has both execute and execute_api")
	}
	if count(s.Undo != nil, s.UndoAPI != "") == 2 {
		d.bad(path, "has both undo and undo_api")
	}
	d.command(path+".execute", s.Execute)
	d.command(path+".undo", s.Undo)
	d.url(path+".execute_api", s.ExecuteAPI)
	d.url(path+".undo_api", s.UndoAPI)
	d.input(path+".input", s)
	if s.MaxRetries != nil && (*s.MaxRetries < 0 || *s.MaxRetries > sagas.MaxRetries) {
		d.bad(path+".max_retries", "%d, want 0 to %d", *s.MaxRetries, sagas.MaxRetries)
	}
	d.seconds(path+".retry_delay_seconds", s.RetryDelay, 0, sagas.MaxRetryDelay.Seconds())
	d.stepTimeout(path+".step_timeout_seconds", s)
}

// stepTimeout refuses what a sandbox can't have: a command that was promised an hour must not end at five minutes (H-19).
func (d *checker) stepTimeout(path string, s *Step) {
	d.seconds(path, s.StepTimeout, 0.001, sagas.MaxStepTimeout.Seconds())
	if most := MaxCommandTimeout.Seconds(); s.StepTimeout != nil && *s.StepTimeout > most && (s.Execute != nil || s.Undo != nil) {
		d.bad(path, "%v: a command runs for %v s at most; what takes longer is called by execute_api and undo_api", *s.StepTimeout, most)
	}
}

func count(set ...bool) (n int) {
	for _, one := range set {
		if one {
			n++
		}
	}
	return n
}

func (d *checker) command(path string, c *Command) {
	if c == nil {
		return
	}
	size := 0
	for i, a := range c.Command {
		size += len(a)
		if strings.ContainsRune(a, 0) {
			d.bad(fmt.Sprintf("%s.command[%d]", path, i), "contains a NUL byte")
		}
	}
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		d.bad(path+".command", "names no program")
	case strings.HasPrefix(c.Command[0], "-"):
		d.bad(path+".command", "%.80q is no name of a program", c.Command[0])
	case len(c.Command) > maxArgs || size > maxArgBytes:
		d.bad(path+".command", "%d arguments of %d bytes, want at most %d and %d", len(c.Command), size, maxArgs, maxArgBytes)
	}
	if c.Ring < 1 || c.Ring > 3 {
		d.bad(path+".ring", "%d, want 1, 2 or 3", c.Ring)
	}
	if c.Profile != "" && !printable(c.Profile, maxName) || strings.HasPrefix(c.Profile, "-") {
		d.bad(path+".profile", "%.80q is no name of a profile", c.Profile)
	}
	if c.Workspace != "" && (!printable(c.Workspace, 4096) || !filepath.IsAbs(c.Workspace)) {
		d.bad(path+".workspace", "%.80q is no path", c.Workspace)
	}
}

func (d *checker) url(path, s string) {
	if s == "" {
		return
	}
	if err := CheckURL(s); err != nil {
		d.bad(path, "%v", err)
	}
}

// CheckURL refuses what httpstep can't call. Plain HTTP is only safe where nobody sits in between, so it goes to the
// machine itself; TLS would cost every start of agentrun 0.3 ms for a client that few runs need. A gateway on the loopback
// (or a sandboxed command) speaks to the rest of the world.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("%.80q is no URL", s)
	}
	port, perr := strconv.Atoi(u.Port())
	addr, aerr := netip.ParseAddr(u.Hostname())
	switch {
	case len(s) > maxURLBytes || !printable(s, maxURLBytes) || strings.ContainsRune(s, ' '):
		return fmt.Errorf("%.80q is no URL", s)
	case u.Scheme == "https":
		return fmt.Errorf("%.80q: https isn't spoken here: put a gateway on the loopback, or let a command call", s)
	case u.Scheme != "http" || u.Opaque != "":
		return fmt.Errorf("%.80q: want http://", s)
	case u.User != nil:
		return fmt.Errorf("a URL with a password in it ends up in the journal and in the audit")
	case u.Fragment != "":
		return fmt.Errorf("%.80q: a fragment isn't sent", s)
	case u.Hostname() != "localhost" && (aerr != nil || !addr.IsLoopback() || addr.Zone() != ""):
		return fmt.Errorf("%.80q: plain http goes to the loopback only: want localhost, 127.0.0.1 or [::1]", s)
	case u.Port() != "" && (perr != nil || port < 1 || port > 65535):
		return fmt.Errorf("%.80q: port %s", s, u.Port())
	}
	return nil
}

func (d *checker) input(path string, s *Step) {
	if s.Input == nil {
		return
	}
	if s.ExecuteAPI == "" && s.UndoAPI == "" {
		d.bad(path, "goes to no API: commands have arguments")
	}
	if b, err := json.Marshal(s.Input); err != nil || len(b) > maxInputBytes {
		d.bad(path, "%d bytes as JSON, want at most %d", len(b), maxInputBytes)
	}
}

func (d *checker) seconds(path string, s *float64, from, to float64) {
	if s != nil && (math.IsNaN(*s) || *s != 0 && *s < 0.001 || *s < from || *s > to) {
		d.bad(path, "%v, want %v to %v (whole milliseconds count)", *s, from, to)
	}
}

func (d *checker) identifier(path, s string, required bool) {
	if s == "" && !required || sagas.Identifier(s) {
		return
	}
	if s == "" {
		d.bad(path, "missing")
		return
	}
	d.bad(path, "%.80q is no identifier: want letters and digits, inside also . _ : and -, at most 256", s)
}

// sessionID is H-29's other form.
func sessionID(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
	})
}

func printable(s string, limit int) bool {
	return s != "" && len(s) <= limit && !strings.ContainsFunc(s, unicode.IsControl)
}
