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

// CompressionOf is what a file's name says; None where it says nothing.
func CompressionOf(name string) Compression {
	switch {
	case strings.HasSuffix(name, ".gz"):
		return Gzip
	case strings.HasSuffix(name, ".zst"):
		return Zstd
	}
	return None
}

// packer compresses one chunk after the other, each so that it stands by itself.
type packer struct {
	kind Compression
	gzip *gzip.Writer
	zstd *zstd.Encoder
	out  bytes.Buffer
	// frame is the last one that zstd made.
	frame []byte
}

func newPacker(kind Compression) (p *packer, err error) {
	p = &packer{kind: kind}
	switch kind {
	case None:
	case Gzip:
		p.gzip = gzip.NewWriter(&p.out)
	case Zstd:
		p.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(chunkBytes))
	default:
		err = fmt.Errorf("compression %q is not known; known are none, gzip and zstd", kind)
	}
	return p, err
}

// pack returns a chunk as it is stored; it may be used until the next call.
func (p *packer) pack(chunk []byte) ([]byte, error) {
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

// readAhead is how much of a file is read at once.
const readAhead = 256 << 10

// unpack reads what r holds, decompressed where its first bytes say that it is compressed, whatever its name. Whoever calls closes it; r stays open.
func unpack(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, readAhead)
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
