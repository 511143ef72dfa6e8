package consumer

import (
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestATiersRecordIsTakenUpAtItsNotBeforeOrAfterTheTiersDelayWhicheverIsFirst(t *testing.T) {
	appended := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	p := &partition{delay: 10 * time.Second}
	for name, c := range map[string]struct{ notBefore, want time.Duration }{ // after the append
		"jitter has shortened the delay":    {9 * time.Second, 9 * time.Second},
		"the delay is the whole wait":       {10 * time.Second, 10 * time.Second},
		"the wait goes on in another tier":  {time.Hour, 10 * time.Second},
		"it was due before it was appended": {-time.Minute, -time.Minute},
	} {
		e := &entry{p: p, appended: appended.UnixMilli(), rec: deadletter.Record{NotBefore: appended.Add(c.notBefore).UnixMilli()}}
		if got := e.takeUp().Sub(appended); got != c.want {
			t.Errorf("%s: taken up %s after the append, want %s", name, got, c.want)
		}
	}
}
