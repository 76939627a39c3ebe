package mail_test

import (
	"net"
	"net/textproto"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/mail"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// What is ASCII is handed in as such, also to a server that takes more: those behind it may not.
func TestMailAsksForNothingMore(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan []string, 1)
	t.Cleanup(func() { l.Close() })
	go func() {
		var all []string
		defer func() { heard <- all }()
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		c := textproto.NewConn(conn)
		for answer := "220 x"; c.PrintfLine("%s", answer) == nil; {
			line, err := c.ReadLine()
			if err != nil {
				return
			}
			all = append(all, line)
			switch answer = "250 fine"; {
			case strings.HasPrefix(line, "EHLO"):
				answer = "250-x\r\n250-8BITMIME\r\n250-SIZE 1000\r\n250 SMTPUTF8"
			case strings.HasPrefix(line, "RCPT"):
				answer = "550 no"
			}
		}
	}()
	s := &mail.Server{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Security: mail.None, Hello: "x"}
	if err := send(t, s); mail.Refusal(err) == nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"EHLO x", "MAIL FROM:<shop@shop.example>", "RCPT TO:<jo@example.com>"}, <-heard); diff != "" {
		t.Error(diff)
	}
	other := sink.NewMails(t)
	if err := server(other).Send(t.Context(), new(net.Dialer).DialContext, "shop@shop.example> SIZE=1", []string{"jo@example.com"}, []byte("Subject: x\r\n\r\n")); err == nil || len(other.Taken()) > 0 {
		t.Errorf("a sender with a parameter: %v, %v", err, other.Taken())
	}
}
