package remedy

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestAWrittenStatusIsWhatATargetWithThatAnswerGives(t *testing.T) {
	for _, status := range []int{200, 204, 301, 400, 401, 404, 408, 409, 410, 422, 425, 429, 500, 503, 599, 600, 999} {
		url := served(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		want := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record())
		for _, word := range []string{strconv.Itoa(status), "http_" + strconv.Itoa(status)} {
			if got, err := ParseAnswer(word); err != nil || got != want {
				t.Errorf("%s: %+v, %v; a target's answer is %+v", word, got, err, want)
			}
		}
	}
}

func TestAWrittenCauseHasTheClassOfTheContract(t *testing.T) {
	for word, want := range map[string]deadletter.Outcome{
		"resolved":         {Class: deadletter.Resolved},
		"timeout":          {Class: deadletter.Suspect, Cause: "timeout"},
		"refused":          {Class: deadletter.Unavailable, Cause: "refused"},
		"reset":            {Class: deadletter.Unavailable, Cause: "reset"},
		"redirect":         {Class: deadletter.Suspect, Cause: "redirect", PermanentIfCounted: true},
		"rejected/E42":     {Class: deadletter.Permanent, Cause: "rejected", Code: "E42"},
		"poison_requested": {Class: deadletter.Permanent, Cause: "poison_requested"},
		"in_progress":      {Class: deadletter.InProgress, Cause: "in_progress"},
		"busy":             {Class: deadletter.Busy, Cause: "busy", Status: 429},
		"locked_rows":      {Class: deadletter.Suspect, Cause: "locked_rows"},
		"422/a/b":          {Class: deadletter.Permanent, Cause: "rejected", Status: 422, Message: "422 Unprocessable Entity", Code: "a/b"},
		"200/E42":          {Class: deadletter.Resolved, Status: 200},
	} {
		if got, err := ParseAnswer(word); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", word, got, err, want)
		}
	}
	for _, word := range []string{"", "0", "100", "1000", "-1", "Time out", "a b", "/E42", "500/", "500/a b", "422/" + strings.Repeat("x", 65), strings.Repeat("x", 41)} {
		if got, err := ParseAnswer(word); err == nil {
			t.Errorf("%q is read as %+v", word, got)
		}
	}
}

func TestACodeInTheBodyIsTheOutcomes(t *testing.T) {
	for _, c := range []struct {
		status     int
		body, want string
	}{
		{422, `{"code":"E42","text":"no such account"}`, "E42"},
		{500, ` {"code":"LEDGER:LOCKED"}`, "LEDGER:LOCKED"},
		{503, `{"code":1205}`, "1205"},
		{200, `{"status":"POISON","code":"E42"}`, "E42"},
		{200, `{"status":"RETRY","code":"LOCKED"}`, "LOCKED"},
		{200, `{"code":"OK"}`, ""}, // a success has none
		{422, `{"code":null}`, ""},
		{422, `{"code":["E42"]}`, ""},
		{422, `{"code":"two words"}`, ""},
		{422, `{"code":"` + strings.Repeat("x", deadletter.MaxCodeBytes+1) + `"}`, ""},
		{422, `{"error":{"code":"E42"}}`, ""},
		{422, `["code"]`, ""},
		{422, `{"code":"E42"`, ""},
		{422, `E42`, ""},
		{422, ``, ""},
	} {
		url := served(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		if o := target(t, HTTPOptions{URL: url}).Remediate(t.Context(), record()); o.Code != c.want {
			t.Errorf("%d %s: code %q, want %q", c.status, c.body, o.Code, c.want)
		}
	}
}
