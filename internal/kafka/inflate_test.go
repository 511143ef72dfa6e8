package kafka

import (
	"bytes"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestNoMoreIsDecompressedUntilWhatWasIsPolled(t *testing.T) {
	plain := make([]byte, 1000)
	pack, err := kgo.DefaultCompressor(kgo.ZstdCompression())
	if err != nil {
		t.Fatal(err)
	}
	small, codec := pack.Compress(new(bytes.Buffer), plain)
	f := NewInflater(2500)
	for n := range 3 { // the third passes the bound, as one batch may
		if out, err := f.Decompress(small, codec); err != nil || !bytes.Equal(out, plain) {
			t.Fatalf("batch %d: %d bytes, %v", n, len(out), err)
		}
	}
	if _, err := f.Decompress(small, codec); !errors.Is(err, ErrInflated) {
		t.Fatalf("the fourth batch: %v", err)
	}
	cl, err := kgo.NewClient() // has nothing that was fetched
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	f.Polled(cl)
	if _, err := f.Decompress(small, codec); err != nil {
		t.Fatalf("after all was polled: %v", err)
	}
	f.used.Store(0)
	if _, err := f.Decompress([]byte("not zstd"), codec); err == nil || errors.Is(err, ErrInflated) {
		t.Fatalf("garbage: %v", err)
	}
}
