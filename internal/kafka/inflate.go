package kafka

import (
	"errors"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Inflater is the decompressor of a client that consumes. The client
// decompresses a whole answer before it hands any of it out, and what compresses
// well grows a thousandfold: so it is stopped once enough of it is not polled.
// What is left of a partition then is fetched again. Each client needs its own.
type Inflater struct {
	inner kgo.Decompressor
	most  int64        // bytes; passed by one batch a broker
	used  atomic.Int64 // bytes since all that was fetched had been polled
}

// ErrInflated is the error of a partition that none was decompressed of yet:
// there is nothing to do but to poll on. Where there is at least one batch
// before, the client keeps it to itself.
var ErrInflated = errors.New("enough is decompressed that is not polled yet")

// NewInflater makes one that decompresses about most bytes ahead of what is polled.
func NewInflater(most int64) *Inflater {
	return &Inflater{inner: kgo.DefaultDecompressor(), most: most}
}

// Decompress is part of kgo.Decompressor.
func (f *Inflater) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if f.used.Load() >= f.most {
		return nil, ErrInflated
	}
	out, err := f.inner.Decompress(src, codec)
	f.used.Add(int64(len(out)))
	return out, err
}

// Polled is to be called after each poll of its client. It begins anew if nothing
// is left that was fetched. An answer that is just being decompressed is
// forgotten then: one a broker, at most.
func (f *Inflater) Polled(cl *kgo.Client) {
	if cl.BufferedFetchRecords() == 0 {
		f.used.Store(0)
	}
}
