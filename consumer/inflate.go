package consumer

import (
	"errors"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// inflater is the group client's decompressor. The client decompresses a whole
// answer before it hands any of it out, and what compresses well grows a
// thousandfold: so it is stopped once enough of it is not polled. What is left
// of the partition then is fetched again.
type inflater struct {
	kgo.Decompressor
	most int64        // bytes; passed by one batch a broker
	used atomic.Int64 // bytes since all that was fetched had been polled
}

// errInflated is the answer for what is not decompressed yet. The client keeps
// it to itself where a partition has at least one batch before.
var errInflated = errors.New("enough is decompressed that is not polled yet")

func newInflater(most int64) *inflater {
	return &inflater{Decompressor: kgo.DefaultDecompressor(), most: most}
}

// Decompress is part of kgo.Decompressor.
func (f *inflater) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if f.used.Load() >= f.most {
		return nil, errInflated
	}
	out, err := f.Decompressor.Decompress(src, codec)
	f.used.Add(int64(len(out)))
	return out, err
}

// polled begins anew if the client has nothing left that was fetched. An answer
// that it is just decompressing is forgotten then: one a broker, at most.
func (f *inflater) polled(cl *kgo.Client) {
	if cl.BufferedFetchRecords() == 0 {
		f.used.Store(0)
	}
}
