// Package progress knows how far a partition is done, and writes it into the
// metadata string of an offset commit.
//
// Results finish in any order, so one offset cannot say it. Progress is a low
// offset (the first incomplete one, what Kafka calls the committed offset), a
// top, and the holes between them: the offsets that are not complete. A stuck
// record is one hole and holds back nothing; a restart skips all that is done.
// Beside it travel a nonce (which transaction wrote this: it settles an
// ambiguous commit), seen (up to there the enqueued events are written) and seq
// (audit events so far, so that their numbers stay gap-free).
//
// The package is pure: no clock, no I/O.
package progress

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// Range is the offsets From ≤ offset < To.
type Range struct{ From, To int64 }

// Progress is what a commit says about a partition.
type Progress struct {
	Nonce uint64  // of the transaction that wrote it, and of the topic it is of
	Low   int64   // first incomplete offset: the committed offset
	Top   int64   // every offset from here on is incomplete
	Holes []Range // incomplete offsets below Top: ascending, disjoint, not adjacent; the first starts at Low
	Seen  int64   // the enqueued events of all offsets below are written
	Seq   int64   // audit events written for this partition so far
}

// Limits of the codec.
const (
	// DefaultLimit is Kafka's default offset.metadata.max.bytes. The broker counts UTF-16 characters; the encoding is ASCII.
	DefaultLimit = 4096

	version  = "1"
	checksum = 4
	// maxSpan bounds what a decoded progress may claim to span, so that arithmetic cannot overflow.
	maxSpan = math.MaxInt64 / 4
)

// Errors of the codec.
var (
	// ErrTooLong says that the encoding would pass the limit. Nothing is ever cut to fit.
	ErrTooLong = errors.New("progress does not fit the commit metadata")
	// ErrUnknown says that the metadata is not ours, of a newer version, or damaged. It must never be read as "no holes".
	ErrUnknown = errors.New("commit metadata is not a progress this version knows")
)

// Encode writes p into at most limit characters of ASCII.
//
// The layout is a version character, then base64 of: nonce (8 bytes), uvarint
// top-low, varint seen-low, uvarint seq, uvarint number of runs, that many runs
// (uvarint distance from the end of the last one, uvarint length), a bitmap of
// what is left up to top (empty if no hole is left), and a CRC-32C. Holes are
// written as runs as far as that is shorter and as a bitmap from there on, so
// that both a few old holes and a dense window are short: any pattern over
// 24,000 offsets fits DefaultLimit.
func Encode(p Progress, limit int) (string, error) {
	b := make([]byte, 0, 256)
	b = binary.BigEndian.AppendUint64(b, p.Nonce)
	b = binary.AppendUvarint(b, uint64(p.Top-p.Low))
	b = binary.AppendVarint(b, p.Seen-p.Low)
	b = binary.AppendUvarint(b, uint64(p.Seq))
	runs := shortestSplit(p)
	b = binary.AppendUvarint(b, uint64(runs))
	at := p.Low
	for _, h := range p.Holes[:runs] {
		b = binary.AppendUvarint(b, uint64(h.From-at))
		b = binary.AppendUvarint(b, uint64(h.To-h.From))
		at = h.To
	}
	if rest := p.Holes[runs:]; len(rest) > 0 {
		size := bitmapLen(p.Top - at)
		if encodedLen(len(b)+size+checksum) > limit {
			return "", ErrTooLong // before the bitmap is made: it can be large
		}
		bits := make([]byte, size)
		for _, h := range rest {
			for o := h.From - at; o < h.To-at; o++ {
				bits[o/8] |= 1 << (o % 8)
			}
		}
		b = append(b, bits...)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if encodedLen(len(b)) > limit {
		return "", ErrTooLong
	}
	return version + encoding.EncodeToString(b), nil
}

// shortestSplit returns how many holes to write as runs before the bitmap.
func shortestSplit(p Progress) int {
	best, split, size := math.MaxInt, 0, 0
	at := p.Low
	for k := 0; k <= len(p.Holes); k++ {
		total := size
		if k < len(p.Holes) {
			total += int(min(bitmapLen64(p.Top-at), math.MaxInt32))
		}
		if total < best {
			best, split = total, k
		}
		if k < len(p.Holes) {
			h := p.Holes[k]
			size += uvarintLen(uint64(h.From-at)) + uvarintLen(uint64(h.To-h.From))
			at = h.To
		}
	}
	return split
}

// Decode reads what Encode wrote, for a partition whose committed offset is low.
// Anything it does not know is ErrUnknown: the caller must refuse the partition.
func Decode(low int64, metadata string) (Progress, error) {
	p := Progress{Low: low}
	bad := func(what string) (Progress, error) { return Progress{}, fmt.Errorf("%w: %s", ErrUnknown, what) }
	if metadata == "" {
		return bad("it is empty")
	}
	if metadata[:1] != version {
		return bad("its version is not " + version)
	}
	if low < 0 || low > maxSpan {
		return bad("the committed offset is out of range")
	}
	b, err := encoding.DecodeString(metadata[1:])
	if err != nil {
		return bad("it is not base64")
	}
	if len(b) < 8+checksum {
		return bad("it is too short")
	}
	body, sum := b[:len(b)-checksum], binary.BigEndian.Uint32(b[len(b)-checksum:])
	if crc32.Checksum(body, castagnoli) != sum {
		return bad("its checksum is wrong")
	}
	p.Nonce = binary.BigEndian.Uint64(body)
	d := decoder{b: body[8:]}
	span := d.uvarint(maxSpan)
	seen := d.varint()
	p.Seq = int64(d.uvarint(math.MaxInt64))
	runs := d.uvarint(uint64(len(body)))
	if d.bad || seen > maxSpan || seen < -maxSpan || low+seen < 0 {
		return bad("a number is out of range")
	}
	p.Top, p.Seen = low+int64(span), low+seen
	at := low
	for range runs {
		gap, length := d.uvarint(span), d.uvarint(span)
		from := at + int64(gap)
		to := from + int64(length)
		if d.bad || length == 0 || to > p.Top || (gap == 0 && at != low) {
			return bad("a hole is out of range")
		}
		p.Holes = append(p.Holes, Range{from, to})
		at = to
	}
	if len(d.b) > 0 {
		if int64(len(d.b)) != bitmapLen64(p.Top-at) {
			return bad("its bitmap has the wrong length")
		}
		for o := int64(0); o < int64(len(d.b))*8; o++ {
			if d.b[o/8]&(1<<(o%8)) == 0 {
				continue
			}
			if at+o >= p.Top {
				return bad("a hole lies above top")
			}
			p.Holes = appendHole(p.Holes, at+o, at+o+1)
		}
	}
	if (len(p.Holes) == 0) != (p.Top == p.Low) || len(p.Holes) > 0 && p.Holes[0].From != low {
		return bad("low is not the first incomplete offset")
	}
	return p, nil
}

// appendHole adds [from,to) behind the last hole, joining the two if they touch.
func appendHole(holes []Range, from, to int64) []Range {
	if n := len(holes); n > 0 && holes[n-1].To == from {
		holes[n-1].To = to
		return holes
	}
	return append(holes, Range{from, to})
}

// Count returns how many offsets are incomplete below Top.
func (p Progress) Count() int64 {
	var n int64
	for _, h := range p.Holes {
		n += h.To - h.From
	}
	return n
}

var (
	encoding   = base64.RawURLEncoding.Strict()
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func encodedLen(n int) int         { return len(version) + encoding.EncodedLen(n) }
func bitmapLen(span int64) int     { return int(min(bitmapLen64(span), math.MaxInt32)) }
func bitmapLen64(span int64) int64 { return (span + 7) / 8 }
func uvarintLen(v uint64) (n int) {
	for n = 1; v >= 0x80; n++ {
		v >>= 7
	}
	return n
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > most {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}
