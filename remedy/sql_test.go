package remedy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// What a database answers is tested on one in test/postgres.

func TestNewSQLNamesEveryFaultAndNoSecret(t *testing.T) {
	good := SQLOptions{
		DSNFile: secretFile(t, "postgres://recon:hunter2@127.0.0.1:1/ledger?sslmode=disable"), Statement: "insert into t values (@id)",
		Processed: "recon.processed", Timeout: time.Second,
	}
	for name, c := range map[string]struct {
		change func(o *SQLOptions)
		want   []string
	}{
		"nothing":              {func(o *SQLOptions) { *o = SQLOptions{} }, []string{"dsn_file: no such file", "statement: is empty", "processed: empty", "timeout: must be longer than 0"}},
		"an empty file":        {func(o *SQLOptions) { o.DSNFile = secretFile(t, "") }, []string{"dsn_file: the file is no connection string"}},
		"no connection string": {func(o *SQLOptions) { o.DSNFile = secretFile(t, "hunter2") }, []string{"dsn_file: the file is no connection string"}},
		"a bad port":           {func(o *SQLOptions) { o.DSNFile = secretFile(t, "postgres://recon:hunter2@h:port/ledger") }, []string{"dsn_file: the file is no connection string"}},
		"a bad pool":           {func(o *SQLOptions) { o.DSNFile = secretFile(t, "postgres://recon:hunter2@h/ledger?pool_max_conns=0") }, []string{"dsn_file: the file is no connection string"}},
		"an unknown parameter": {func(o *SQLOptions) { o.Statement = "insert into t values (@id, @amount)" }, []string{"statement: has a parameter that does not exist: there are @id, "}},
		"no parameter":         {func(o *SQLOptions) { o.Statement = "insert into t values ('@id') -- @id" }, []string{"statement: has no parameter"}},
	} {
		o := good
		c.change(&o)
		s, err := NewSQL(o)
		if err == nil || s != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q: %v", name, want, err)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has a secret: %v", name, err)
		}
	}
}

func TestBothFormsOfAConnectionStringAreRead(t *testing.T) {
	for _, text := range []string{
		"postgres://recon:hunter2@127.0.0.1:1/ledger?sslmode=disable",
		"host=127.0.0.1 port=1 user=recon password='hunter 2' dbname=ledger sslmode=disable",
	} {
		s, err := NewSQL(SQLOptions{DSNFile: secretFile(t, text), Statement: "insert into t values (@id)", Processed: "p", Timeout: patience})
		if err != nil {
			t.Error(err)
			continue
		}
		if o := s.Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseRefused || strings.Contains(o.Message, "hunter") {
			t.Errorf("nobody listens there: %+v", o)
		}
		s.Close()
	}
}

func TestTheParametersOfAStatementAreNumbered(t *testing.T) {
	got, names, err := parseStatement(`select '@id', "@id", @id, @value::jsonb @> '{}', @id /* @x */, $$@x$$ -- @x`)
	want := `select '@id', "@id", $1, $2::jsonb @> '{}', $1 /* @x */, $$@x$$ -- @x`
	if err != nil || got != want || !slices.Equal(names, []string{"id", "value"}) {
		t.Errorf("got %s with %v, %v\nwant %s", got, names, err, want)
	}
}

func TestEveryParameterIsTold(t *testing.T) {
	for name := range parameters {
		if !strings.Contains(parameterNames, "@"+name) {
			t.Errorf("faults do not name @%s", name)
		}
	}
}

func TestTheContextIsFoundByItsExactName(t *testing.T) {
	for value, want := range map[string]any{
		`{"context":{"a":1.0}}`:                        `{"a":1.0}`,
		`{"Context":1,"context" : {"a":"\u00e9"} }`:    `{"a":"\u00e9"}`,
		`{"context":{},"CONTEXT":{"a":1},"x":[1e400]}`: `{}`,
		`{"inner":{"context":1}}`:                      nil,
		`[]`:                                           nil,
		`opaque`:                                       nil,
		``:                                             nil,
	} {
		if got := contextOf([]byte(value)); got != want {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
}
