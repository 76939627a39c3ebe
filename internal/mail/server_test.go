package mail_test

import (
	"context"
	"errors"
	"net"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/mail"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func server(s *sink.MailServer) *mail.Server {
	return &mail.Server{Host: s.Host, Port: s.Port, Security: mail.None, Hello: "shop.example"}
}

func send(t *testing.T, s *mail.Server) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return s.Send(ctx, new(net.Dialer).DialContext, "shop@shop.example", []string{"jo@example.com"},
		[]byte("Subject: x\r\n\r\n.\r\nhello\r\n"))
}

// The message and the password are sent only over an encrypted connection, to a server with a
// trusted certificate.
func TestServerSend_encryptionRequired_neverSendsUnencrypted(t *testing.T) {
	t.Parallel()
	config, roots := sink.Certificate(t)
	s := sink.NewMailServer(t)
	s.SetSettings(sink.MailSettings{TLS: config, Username: "jo", Password: "secret"})
	to := server(s)
	to.Security, to.Roots, to.Username, to.Password = mail.Required, roots, "jo", "secret"
	if err := send(t, to); err != nil || len(s.Accepted()) != 1 ||
		s.Accepted()[0].Message != "Subject: x\r\n\r\n.\r\nhello\r\n" {
		t.Fatal(err, s.Accepted())
	}
	wrong := *to
	wrong.Password = "another"
	if err := send(t, &wrong); mail.Rejection(err) == nil || mail.Rejection(err).Code != 535 {
		t.Error(err)
	}
	untrusted := *to
	untrusted.Roots = nil
	if err := send(t, &untrusted); err == nil || mail.Rejection(err) != nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
	plain := sink.NewMailServer(t)
	open := server(plain)
	open.Security = mail.Required
	if err := send(t, open); err == nil || !strings.Contains(err.Error(), "does not offer STARTTLS") {
		t.Error(err)
	}
	open.Security = mail.Implicit
	if err := send(t, open); err == nil {
		t.Error("an unencrypted server is accepted")
	}
	if len(s.Accepted()) != 1 || len(plain.Accepted()) != 0 {
		t.Errorf("%d and %d accepted", len(s.Accepted()), len(plain.Accepted()))
	}
}

// A server without PLAIN gets username and password by LOGIN. A server without either gets nothing.
func TestServerSend_serverWithoutPlain_usesLogin(t *testing.T) {
	t.Parallel()
	s := sink.NewMailServer(t)
	s.SetSettings(sink.MailSettings{LoginOnly: true, Username: "jo", Password: "secret"})
	to := server(s)
	to.Username, to.Password = "jo", "secret"
	if err := send(t, to); err != nil || len(s.Accepted()) != 1 {
		t.Error(err)
	}
	to.Password = "another"
	if err := send(t, to); err == nil || len(s.Accepted()) != 1 {
		t.Error("another password is accepted")
	}
	open := sink.NewMailServer(t)
	unsupported := server(open)
	unsupported.Username, unsupported.Password = "jo", "secret"
	if err := send(t, unsupported); err == nil || !strings.Contains(err.Error(), "does not accept username and "+
		"password") || len(open.Accepted()) != 0 {
		t.Error(err)
	}
}

// The outcome is unknown only if the message was sent completely and no response came.
func TestServerSend_responseLost_isErrNoResponse(t *testing.T) {
	t.Parallel()
	for fault, want := range map[sink.MailFault]struct {
		code       int
		noResponse bool
	}{
		sink.MailTemporaryFailure: {451, false}, sink.MailboxFull: {452, false}, sink.MailRejectedAsSpam: {554, false},
		sink.MailDropsBeforeMessage: {0, false}, sink.MailDropsBeforeBanner: {0, false},
		sink.MailAcceptsThenDrops: {0, true}, sink.MailDropsAfterMessage: {0, true},
	} {
		s := sink.NewMailServer(t)
		s.SetFaults(func() sink.MailFault { return fault })
		err := send(t, server(s))
		code := 0
		if rejection := mail.Rejection(err); rejection != nil {
			code = rejection.Code
		}
		if err == nil || errors.Is(err, mail.ErrNoResponse) != want.noResponse || code != want.code {
			t.Errorf("fault %d: %v", fault, err)
		}
	}
}

// A server that sends without end does not block forever.
func TestServerSend_endlessResponse_fails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for err == nil {
			_, err = conn.Write([]byte("220-" + strings.Repeat("x", 1000)))
		}
	}()
	s := &mail.Server{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Security: mail.None, Hello: "x"}
	if err := send(t, s); err == nil || !strings.Contains(err.Error(), "sends more than can be read") {
		t.Error(err)
	}
}

// An ASCII message is sent without SMTPUTF8 even if the server offers it, because later servers may
// not support it.
func TestServerSend_smtputf8Offered_isNotRequested(t *testing.T) {
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
	if err := send(t, s); mail.Rejection(err) == nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"EHLO x", "MAIL FROM:<shop@shop.example>", "RCPT TO:<jo@example.com>"},
		<-heard); diff != "" {
		t.Error(diff)
	}
	other := sink.NewMailServer(t)
	if err := server(other).Send(t.Context(), new(net.Dialer).DialContext, "shop@shop.example> SIZE=1",
		[]string{"jo@example.com"}, []byte("Subject: x\r\n\r\n")); err == nil || len(other.Accepted()) > 0 {
		t.Errorf("a sender with a parameter: %v, %v", err, other.Accepted())
	}
}
