package config

import (
	"fmt"
	"strings"
)

// Fault is one thing that is wrong with the configuration. It never repeats a
// value that could be a secret.
type Fault struct {
	Path string `json:"path,omitempty"` // of the key, such as rules[2].sla.max_age; empty: the file as a whole
	From string `json:"from,omitempty"` // where the value was read: file, variable or flag; empty: it was not written
	Line int    `json:"line,omitempty"` // in the file, from 1; 0: not in a file
	Msg  string `json:"message"`        // what is wrong, and how to mend it
}

// String is "file:line: path: message", less what is not known.
func (f Fault) String() string {
	var b strings.Builder
	switch {
	case f.From != "" && f.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", f.From, f.Line)
	case f.From != "":
		b.WriteString(f.From + ": ")
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Msg)
	return b.String()
}

// Faults is everything that is wrong with a configuration.
type Faults struct{ List []Fault }

// Error lists all faults, one a line.
func (f *Faults) Error() string {
	if len(f.List) == 1 {
		return "configuration: " + f.List[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration has %d faults:", len(f.List))
	for _, fault := range f.List {
		b.WriteString("\n  " + fault.String())
	}
	return b.String()
}
