// SPDX-License-Identifier: Apache-2.0

package safetyloop

// Types of notifications (S-13).
const (
	notePermission = "permission_pending"
	notePause      = "autonomy_pause"
	noteDanger     = "danger_zone"
)

func (l *Loop) note(kind, message string, metadata map[string]any) Notification {
	return Notification{Type: kind, Message: message, Metadata: metadata, Timestamp: l.now().UTC()}
}

// broadcast tells every other executing agent that one was stopped (S-8), and not which one or what it wanted: those others may be
// other people's.
func (l *Loop) broadcast(from *execution, verification string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.principals {
		for _, e := range p.running {
			if e != from {
				e.add(l.note(noteDanger, "Another agent was stopped", map[string]any{"verificationId": verification, "other": true}))
			}
		}
	}
}

// add keeps a notification for the next step. A full queue loses its oldest one that isn't danger_zone. Of those none is lost: when
// there are too many to keep, the last one counts the rest. The caller holds mu.
func (e *execution) add(n Notification) {
	danger := 0
	oldest := -1
	for i := range e.notes {
		switch {
		case e.notes[i].Type == noteDanger:
			danger++
		case oldest < 0:
			oldest = i
		}
	}
	switch {
	case n.Type == noteDanger && danger >= maxDangerNotes:
		last := &e.notes[len(e.notes)-1]
		for i := range e.notes {
			if e.notes[i].Type == noteDanger {
				last = &e.notes[i]
			}
		}
		more, _ := last.Metadata["more"].(int)
		last.Metadata["more"] = more + 1
		return
	case n.Type != noteDanger && len(e.notes)-danger >= maxNotes:
		e.notes = append(e.notes[:oldest], e.notes[oldest+1:]...)
	}
	e.notes = append(e.notes, n)
}

// pull takes what waits.
func (l *Loop) pull(e *execution) []Notification {
	l.mu.Lock()
	defer l.mu.Unlock()
	notes := e.notes
	e.notes = nil
	return notes
}
