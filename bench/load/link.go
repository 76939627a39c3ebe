package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// link is a connection for requests, one after the other. It reconnects after the server asked to
// close.
type link struct {
	address string
	c       net.Conn
	in      *bufio.Reader
}

func dial(ctx context.Context, address string) (*link, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &link{address: address, c: c, in: bufio.NewReaderSize(c, 4<<10)}, nil
}

func (l *link) close() { _ = l.c.Close() }

// answerWithin is how long a response may take.
const answerWithin = 30 * time.Second

// post sends a request and returns the status of its response.
func (l *link) post(ctx context.Context, request []byte) (status int, err error) {
	if err := l.c.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return 0, err
	}
	_, broken := l.c.Write(request)
	status, keep, err := answer(l.in)
	if broken != nil && err != nil { // a response counts even if the server did not read the whole body
		return 0, broken
	}
	if err != nil || keep && broken == nil {
		return status, err
	}
	l.close()
	next, err := dial(ctx, l.address)
	if err == nil {
		*l = *next
	}
	return status, err
}

// answer reads a response to the end of its body. keep reports whether the connection may be used
// again.
func answer(in *bufio.Reader) (status int, keep bool, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return 0, false, err
	}
	if len(line) < 12 {
		return 0, false, fmt.Errorf("answered %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, false, fmt.Errorf("answered %q", line)
	}
	length := 0
	keep = true
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		switch name, value, _ := bytes.Cut(line, []byte(": ")); {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, false, err
			}
		case bytes.EqualFold(name, []byte("Connection")):
			keep = !bytes.EqualFold(value, []byte("close"))
		}
	}
	_, err = io.CopyN(io.Discard, in, int64(length))
	return status, keep, err
}
