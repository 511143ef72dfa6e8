package escalation

import "time"

// RestartAfter shortens the first wait after a failed session.
func (e *Escalator) RestartAfter(d time.Duration) { e.restart = d }

// FormatProgress makes the metadata of a committed offset.
func FormatProgress(seq int64) string { return formatProgress(seq) }
