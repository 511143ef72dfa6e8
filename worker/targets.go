package worker

import (
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/remedy"
)

// handler makes the handler of a target. It is closed when no call is under way.
func (w *Worker) handler(t config.Target) (handler, error) {
	if len(t.Exec.Command) > 0 {
		return remedy.NewExec(remedy.ExecOptions{
			Command: t.Exec.Command, Env: programEnv(os.Environ()), Timeout: t.Exec.Timeout,
			Logger: w.log.With("target", t.Name), Now: w.o.Now,
		})
	}
	if t.SQL.Statement != "" {
		return remedy.NewSQL(remedy.SQLOptions{
			DSNFile: t.SQL.DSNFile, Statement: t.SQL.Statement, Processed: t.SQL.Processed, Timeout: t.SQL.Timeout,
			AllowLinkLocal: t.AllowLinkLocal, Observe: w.sqlResults(t.Name),
		})
	}
	return remedy.NewHTTP(remedy.HTTPOptions{
		URL: t.HTTP.URL, Unix: t.HTTP.Unix, Timeout: t.HTTP.Timeout, AllowLinkLocal: t.AllowLinkLocal,
		Auth: remedy.HTTPAuth{
			BearerFile: t.HTTP.Auth.BearerFile, User: t.HTTP.Auth.User, PasswordFile: t.HTTP.Auth.PasswordFile,
			HMACFile: t.HTTP.Auth.HMACFile, PreviousHMACFile: t.HTTP.Auth.PreviousHMACFile,
		},
		TLS:    remedy.TLSFiles{CA: t.HTTP.TLS.CAFile, Cert: t.HTTP.TLS.CertFile, Key: t.HTTP.TLS.KeyFile},
		Source: "recon-dlq/" + w.o.Config.Kafka.Group, MaxIdle: w.o.Config.Limits.Concurrency, UserAgent: "recon-dlq/" + w.o.Version, Now: w.o.Now,
	})
}

// sqlResults makes the counters of a target that is a database.
func (w *Worker) sqlResults(target string) func(remedy.SQLResult) {
	counters := make(map[remedy.SQLResult]prometheus.Counter)
	for _, r := range remedy.SQLResults {
		counters[r] = prometheus.NewCounter(prometheus.CounterOpts{
			Name: "recon_dlq_sql_results_total", Help: "Records resolved by an SQL target, by what the database said.",
			ConstLabels: prometheus.Labels{"target": target, "result": string(r)},
		})
		w.reg.MustRegister(counters[r])
	}
	return func(r remedy.SQLResult) { counters[r].Inc() }
}

type handler interface {
	remedy.Handler
	Close()
}

// programEnv is an environment without what configures the worker: its secrets are
// none of a program's business.
func programEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, config.EnvPrefix) })
}
