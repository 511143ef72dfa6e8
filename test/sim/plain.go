package sim

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kgo"
)

// plain makes clients send what they produce as it is. The decoders that
// clients and brokers would need are closed by a finalizer, outside of the
// bubble that they were made in, which is fatal.
var plain = kgo.WithCompressor(uncompressed{})

type uncompressed struct{}

func (uncompressed) Compress(_ *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	return src, kgo.CodecNone
}
