package deadletter

import "strconv"

// MalformedError says where a record breaks the wire contract. Its text is made
// of names of the contract, offsets and constant words: it never holds a byte of
// the record, so it may go to headers, logs and people.
type MalformedError struct {
	Header  string // the owned header that cannot be trusted; empty: the value is at fault
	Field   string // the value's field; empty: the document itself
	Offset  int    // byte offset in the value; -1 where there is none
	Problem string // what is wrong; constant
}

// Error names the place first, then the problem.
func (e *MalformedError) Error() string {
	if e.Header != "" {
		return "malformed header " + e.Header + ": " + e.Problem
	}
	where := "malformed value"
	if e.Field != "" {
		where += ": field " + e.Field
	}
	if e.Offset >= 0 {
		where += " at byte " + strconv.Itoa(e.Offset)
	}
	return where + ": " + e.Problem
}
