package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/recon-dlq/recon-dlq/internal/demo"
)

func TestADemosExitCodeSaysWhetherEveryRecordIsAccountedFor(t *testing.T) {
	a := &app{started: true}
	for name, c := range map[string]struct {
		sum  demo.Summary
		err  error
		want int
		says string
	}{
		"all accounted for": {sum: demo.Summary{Discrepancies: 2, Resolved: 1, Poison: 1, Escalated: 1}, want: ExitOK},
		"one withheld":      {sum: demo.Summary{Discrepancies: 2, Resolved: 1, Unaccounted: 1, UnaccountedIDs: []string{"d-7"}}, want: ExitFailed, says: "d-7"},
		"one done twice":    {sum: demo.Summary{Discrepancies: 1, Resolved: 1, Duplicates: 1}, want: ExitFailed, says: "twice"},
		"stopped":           {err: fmt.Errorf("play: %w", demo.ErrStopped), want: ExitInterrupted, says: "stopped"},
		"does not run":      {err: errors.New("no port"), want: ExitFailed, says: "no port"},
	} {
		code, text := ExitOK, ""
		if err := concludeDemo(c.sum, c.err); err != nil {
			code, _ = a.exitCode(t.Context(), err)
			text = err.Error()
		}
		if code != c.want || !strings.Contains(text, c.says) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", name, code, text, c.want, c.says)
		}
	}
}

func TestTheDemosHelpSaysThatItsBrokerKeepsNothing(t *testing.T) {
	var out strings.Builder
	if code := Main(t.Context(), []string{"demo", "--help"}, strings.NewReader(""), &out, &out, nil); code != ExitOK {
		t.Fatalf("exit code %d", code)
	}
	for _, want := range []string{"keeps nothing", "--exit", "--plain", "130"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the help:\n%s", want, &out)
		}
	}
}

func TestADemoTakesNoArguments(t *testing.T) {
	var out strings.Builder
	if code := Main(t.Context(), []string{"demo", "now"}, strings.NewReader(""), &out, &out, nil); code != ExitUsage {
		t.Errorf("exit code %d:\n%s", code, &out)
	}
}
