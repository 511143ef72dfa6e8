package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/recon-dlq/recon-dlq/internal/demo/data"
)

// maxBody bounds a call's body, in bytes.
const maxBody = 2 << 20

// Handler serves POST /remediate by the handler contract, GET /stats, and GET /healthz.
func (l *Ledger) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /remediate", l.remediate)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		s, err := l.Stats(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, http.StatusOK, s)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	return mux
}

// rejection is a record that will never succeed: 400 or 422.
type rejection struct {
	status int
	why    string
}

func (r *rejection) Error() string { return r.why }

func unprocessable(format string, args ...any) error {
	return &rejection{http.StatusUnprocessableEntity, fmt.Sprintf(format, args...)}
}

// reply is the body of an answer.
type reply struct {
	Status string `json:"status"` // DONE, SUPERSEDED, REPLAYED or ERROR
	Error  string `json:"error,omitempty"`
}

func (l *Ledger) remediate(w http.ResponseWriter, r *http.Request) {
	if !l.admit(w, r) {
		return
	}
	if l.o.OnCall != nil {
		l.o.OnCall(r.Header)
	}
	key, err := checkEnvelope(r)
	var body []byte
	if err == nil {
		if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
			err = &rejection{http.StatusRequestEntityTooLarge, "body cannot be read"}
		}
	}
	if err == nil && l.o.Refuse > 0 && share("refuse", key) < l.o.Refuse {
		err = unprocessable("account is closed")
	}
	if err == nil && (l.failOnce(key) || l.fault(body)) {
		answer(w, http.StatusInternalServerError, reply{Status: "ERROR", Error: "try again"})
		return
	}
	var status string
	if err == nil {
		// A caller that gives up does not stop what has begun: its retry is a replay.
		// (And an interrupted connection would be dropped, the database in memory with it.)
		status, err = l.settle(context.WithoutCancel(r.Context()), key, body)
	}
	var rejected *rejection
	switch {
	case errors.As(err, &rejected):
		l.count(func(s *Stats) { s.Rejected++ })
		answer(w, rejected.status, reply{Status: "ERROR", Error: rejected.why})
	case err != nil:
		l.count(func(s *Stats) { s.Errors++ })
		answer(w, http.StatusInternalServerError, reply{Status: "ERROR", Error: "database"})
	default:
		l.count(func(s *Stats) {
			switch status {
			case replayed:
				s.Replayed++
			case superseded:
				s.Superseded++
			}
		})
		answer(w, http.StatusOK, reply{Status: status})
	}
}

// admit counts a call and makes it suffer an outage and the latency. It says
// whether the call goes on.
func (l *Ledger) admit(w http.ResponseWriter, r *http.Request) bool {
	l.mu.Lock()
	l.stats.Calls++
	outage, ended := l.outage, l.ended
	if outage == Unavailable || outage == Hanging {
		l.stats.Down++
	}
	l.mu.Unlock()
	switch outage {
	case Unavailable:
		answer(w, http.StatusServiceUnavailable, reply{Status: "ERROR", Error: "down"})
		return false
	case Hanging:
		// Only with the body read does the server see that the caller gives up.
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
		select {
		case <-r.Context().Done():
		case <-ended:
		}
		answer(w, http.StatusServiceUnavailable, reply{Status: "ERROR", Error: "down"})
		return false
	}
	if l.o.Latency > 0 {
		t := time.NewTimer(l.o.Latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return false
		}
	}
	return true
}

// failOnce says whether this is the first call of a record that is to fail once.
func (l *Ledger) failOnce(key string) bool {
	if l.o.FailOnce == 0 || share("fail", key) >= l.o.FailOnce {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed[key] {
		return false
	}
	l.failed[key] = true
	l.stats.FailedOnce++
	return true
}

// fault says whether this call is one that Options.Faults lets fail.
func (l *Ledger) fault(body []byte) bool {
	if len(l.o.Faults) == 0 {
		return false
	}
	var rec struct {
		ID string `json:"discrepancy_id"`
	}
	if json.Unmarshal(body, &rec) != nil {
		return false // settle says what is wrong with it
	}
	n := l.o.Faults[rec.ID]
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= 0 && (l.back || l.faults[rec.ID] >= n) {
		l.back = false
		return false
	}
	l.faults[rec.ID]++
	l.stats.Faulted++
	return true
}

func (l *Ledger) count(add func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add(&l.stats)
}

// share maps a key to [0,1), evenly, the same each time; salt makes independent shares.
func share(salt, key string) float64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, salt)
	_, _ = io.WriteString(h, key)
	x := h.Sum64() // FNV's high bits are poor for short keys: mix them
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / math.Exp2(53)
}

// checkEnvelope checks what the handler contract says of a call's headers
// (CloudEvents 1.0, HTTP binary mode), and returns the idempotency key.
func checkEnvelope(r *http.Request) (key string, err error) {
	if v := r.Header.Get("Ce-Specversion"); v != "1.0" {
		return "", &rejection{http.StatusBadRequest, "ce-specversion is not 1.0: this wants a CloudEvent in HTTP binary mode"}
	}
	for _, h := range []string{"Ce-Id", "Ce-Type", "Ce-Source"} {
		if r.Header.Get(h) == "" {
			return "", &rejection{http.StatusBadRequest, h + " is missing"}
		}
	}
	if key = r.Header.Get("Idempotency-Key"); key == "" {
		return "", &rejection{http.StatusBadRequest, "Idempotency-Key is missing: without it a call cannot be told from its repetition"}
	}
	return key, nil
}

// How a record was settled.
const (
	done       = "DONE"
	superseded = "SUPERSEDED" // the entry was as good or newer already
	replayed   = "REPLAYED"   // the key was done already
)

// settle applies a record, once for a key: the fix and the note of the key are one transaction.
func (l *Ledger) settle(ctx context.Context, key string, body []byte) (status string, err error) {
	var rec struct {
		ID       string       `json:"discrepancy_id"`
		Category string       `json:"category"`
		Context  data.Context `json:"context"`
	}
	if err := json.Unmarshal(body, &rec); err != nil {
		return "", &rejection{http.StatusBadRequest, "body is not a discrepancy in JSON"}
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing after Commit

	noted, err := changed(tx.ExecContext(ctx, `INSERT INTO processed VALUES (?) ON CONFLICT DO NOTHING`, key))
	if err != nil {
		return "", err
	}
	if noted == 0 {
		return replayed, nil
	}
	applied, err := apply(ctx, tx, rec.Category, rec.Context)
	if err != nil {
		return "", err
	}
	status = superseded
	if applied {
		status = done
		if _, err := tx.ExecContext(ctx, `INSERT INTO fixes VALUES (?, 1) ON CONFLICT DO UPDATE SET applied = applied + 1`, rec.ID); err != nil {
			return "", err
		}
	}
	if err := tx.Commit(); err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	return status, nil
}

// apply makes the ledger as the source says, unless it is so or newer.
func apply(ctx context.Context, tx *sql.Tx, category string, c data.Context) (applied bool, err error) {
	switch category {
	case data.AmountDiffers, data.StaleVersion, data.MissingInTarget, data.CurrencyUnknown:
		if c.Source == nil {
			return false, unprocessable("context has no source entry")
		}
		if err := check(ctx, tx, c.Source); err != nil {
			return false, err
		}
	case data.OrphanInTarget:
		if c.Target == nil {
			return false, unprocessable("context has no target entry")
		}
	default:
		return false, unprocessable("category is not one that this ledger settles")
	}

	s := c.Source
	var n int64
	switch category {
	case data.AmountDiffers, data.StaleVersion:
		var version int64
		switch err := tx.QueryRowContext(ctx, `SELECT version FROM entries WHERE id = ?`, s.ID).Scan(&version); {
		case errors.Is(err, sql.ErrNoRows):
			return false, unprocessable("entry is not in the ledger")
		case err != nil:
			return false, err
		}
		n, err = changed(tx.ExecContext(ctx,
			`UPDATE entries SET account = ?, amount_minor = ?, currency = ?, version = ?, state = ? WHERE id = ? AND version < ?`,
			s.Account, s.AmountMinor, s.Currency, s.Version, s.State, s.ID, s.Version))
	case data.OrphanInTarget:
		n, err = changed(tx.ExecContext(ctx,
			`UPDATE entries SET state = 'reversed', version = version + 1 WHERE id = ? AND version = ? AND state <> 'reversed'`, c.Target.ID, c.Target.Version))
	default:
		n, err = changed(tx.ExecContext(ctx,
			`INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, s.ID, s.Account, s.AmountMinor, s.Currency, s.Version, s.State))
	}
	return n > 0, err
}

// check refuses an entry that the ledger cannot hold.
func check(ctx context.Context, tx *sql.Tx, e *data.Entry) error {
	var currency string
	switch err := tx.QueryRowContext(ctx, `SELECT currency FROM accounts WHERE id = ?`, e.Account).Scan(&currency); {
	case errors.Is(err, sql.ErrNoRows):
		return unprocessable("account is unknown")
	case err != nil:
		return err
	}
	if currency != e.Currency {
		return unprocessable("account does not hold this currency")
	}
	if e.ID == "" || e.Version < 1 || e.State != data.Booked && e.State != data.Reversed {
		return unprocessable("source entry is not whole")
	}
	return nil
}

func changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may be gone
}
