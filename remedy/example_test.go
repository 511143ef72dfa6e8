package remedy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/remedy"
)

// A program brings its own handler for one target and reaches another over HTTP.
func Example() {
	cards := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("cards got", r.Header.Get("ce-subject"), "attempt", r.Header.Get("ce-reconattempt"))
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, "no such card")
	}))
	defer cards.Close()
	overHTTP, err := remedy.NewHTTP(remedy.HTTPOptions{URL: cards.URL, Timeout: 10 * time.Second, Source: "recon-dlq/example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer overHTTP.Close()

	mux := remedy.NewMux()
	mux.Handle("cards", overHTTP)
	mux.HandleFunc("ledger", func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		fmt.Println("ledger got", r.DiscrepancyID)
		return deadletter.Outcome{Class: deadletter.Resolved}
	})

	r := &deadletter.Record{ID: "0123456789abcdef0123456789abcdef", DiscrepancyID: "D-42", Value: []byte(`{}`)}
	for _, target := range []string{"ledger", "cards"} {
		h, _ := mux.Handler(target)
		o := remedy.Call(context.Background(), h, r)
		fmt.Printf("resolved %v, cause %q, message %q\n", o.Class == deadletter.Resolved, o.Cause, o.Message)
	}
	// Output:
	// ledger got D-42
	// resolved true, cause "", message ""
	// cards got D-42 attempt 0
	// resolved false, cause "rejected", message "422 Unprocessable Entity: no such card"
}
