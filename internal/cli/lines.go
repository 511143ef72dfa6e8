package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
)

// line is one line of input, without its end. Its bytes are its own.
type line struct {
	number int // from 1
	size   int // bytes of the line, also where they were not kept
	bytes  []byte
}

// tooLong says whether the line was longer than the limit: its bytes were not kept.
func (l line) tooLong() bool { return l.bytes == nil && l.size > 0 }

// empty says whether there is nothing but white space in the line.
func (l line) empty() bool { return !l.tooLong() && len(bytes.TrimSpace(l.bytes)) == 0 }

// readLines sends every line of r to out, until r ends or ctx does. A line ends
// with LF or CRLF; the last one may end with the input. At most limit bytes of a
// line are held in memory: a longer one is read to its end and dropped, so that
// the lines after it are not lost. The error is r's own, nil at its end.
func readLines(ctx context.Context, r io.Reader, limit int, out chan<- line) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for number := 1; ; number++ {
		l, err := readLine(in, limit)
		if err != nil && l.size == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err // half a line is no record
		}
		l.number = number
		select {
		case out <- l:
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return nil
		}
	}
}

func readLine(in *bufio.Reader, limit int) (line, error) {
	var l line
	l.bytes = []byte{}
	for {
		part, err := in.ReadSlice('\n')
		l.size += len(part)
		if l.bytes != nil {
			// Two more bytes than the limit: the end of the line is not part of it.
			if len(l.bytes)+len(part) > limit+2 {
				l.bytes = nil
			} else {
				l.bytes = append(l.bytes, part...)
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if l.bytes != nil {
			body := bytes.TrimSuffix(bytes.TrimSuffix(l.bytes, []byte("\n")), []byte("\r"))
			if len(body) > limit {
				body = nil
			}
			l.bytes = body
		}
		return l, err
	}
}
