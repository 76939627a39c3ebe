package archive

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Compression is how a file is compressed: "none", "gzip" or "zstd".
type Compression string

// The compressions.
const (
	None Compression = "none"
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
)

// CompressionByName returns the compression that a file's name indicates, None by default.
func CompressionByName(name string) Compression {
	switch {
	case strings.HasSuffix(name, ".gz"):
		return Gzip
	case strings.HasSuffix(name, ".zst"):
		return Zstd
	}
	return None
}

// compressor compresses chunks so that each can be decompressed separately.
type compressor struct {
	kind Compression
	gzip *gzip.Writer
	zstd *zstd.Encoder
	out  bytes.Buffer
	// frame is the last frame that zstd produced.
	frame []byte
}

func newCompressor(kind Compression) (p *compressor, err error) {
	p = &compressor{kind: kind}
	switch kind {
	case None:
	case Gzip:
		p.gzip = gzip.NewWriter(&p.out)
	case Zstd:
		p.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(chunkBytes))
	default:
		err = fmt.Errorf("unknown compression %q; use none, gzip or zstd", kind)
	}
	return p, err
}

// compress returns the compressed chunk. It is valid until the next call.
func (p *compressor) compress(chunk []byte) ([]byte, error) {
	p.out.Reset()
	switch p.kind {
	case Gzip:
		p.gzip.Reset(&p.out)
		if _, err := p.gzip.Write(chunk); err != nil {
			return nil, err
		}
		if err := p.gzip.Close(); err != nil {
			return nil, err
		}
	case Zstd:
		p.frame = p.zstd.EncodeAll(chunk, p.frame[:0])
		return p.frame, nil
	default:
		return chunk, nil
	}
	return p.out.Bytes(), nil
}

// readBufferSize is how much of a file is read at once.
const readBufferSize = 256 << 10

// decompress returns a reader of the contents of r. It detects compression by the first bytes,
// whatever the file's name. The caller closes the result; r stays open.
func decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, readBufferSize)
	magic, err := in.Peek(4)
	switch {
	case err != nil && err != io.EOF: //nolint:errorlint // io.Reader promises the value itself
		return nil, err
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}
