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

func server(s *sink.Mails) *mail.Server {
	return &mail.Server{Host: s.Host, Port: s.Port, Security: mail.None, Hello: "shop.example"}
}

func send(t *testing.T, s *mail.Server) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return s.Send(ctx, new(net.Dialer).DialContext, "shop@shop.example", []string{"jo@example.com"}, []byte("Subject: x\r\n\r\n.\r\nhello\r\n"))
}

// A message and the password go over a connection that is encrypted, to a server that is who it should be, or nowhere.
func TestMailIsEncrypted(t *testing.T) {
	t.Parallel()
	config, roots := sink.Cert(t)
	s := sink.NewMails(t)
	s.Asks(sink.MailSettings{TLS: config, Username: "jo", Password: "secret"})
	to := server(s)
	to.Security, to.Roots, to.Username, to.Password = mail.Required, roots, "jo", "secret"
	if err := send(t, to); err != nil || len(s.Taken()) != 1 || s.Taken()[0].Message != "Subject: x\r\n\r\n.\r\nhello\r\n" {
		t.Fatal(err, s.Taken())
	}
	wrong := *to
	wrong.Password = "another"
	if err := send(t, &wrong); mail.Refusal(err) == nil || mail.Refusal(err).Code != 535 {
		t.Error(err)
	}
	stranger := *to
	stranger.Roots = nil
	if err := send(t, &stranger); err == nil || mail.Refusal(err) != nil || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
	plain := sink.NewMails(t)
	open := server(plain)
	open.Security = mail.Required
	if err := send(t, open); err == nil || !strings.Contains(err.Error(), "offers no STARTTLS") {
		t.Error(err)
	}
	open.Security = mail.Implicit
	if err := send(t, open); err == nil {
		t.Error("what is not encrypted is taken for it")
	}
	if len(s.Taken()) != 1 || len(plain.Taken()) != 0 {
		t.Errorf("%d and %d taken", len(s.Taken()), len(plain.Taken()))
	}
}

// A server that knows no PLAIN is told name and password by LOGIN; one that knows neither, nothing.
func TestMailByLogin(t *testing.T) {
	t.Parallel()
	s := sink.NewMails(t)
	s.Asks(sink.MailSettings{Login: true, Username: "jo", Password: "secret"})
	to := server(s)
	to.Username, to.Password = "jo", "secret"
	if err := send(t, to); err != nil || len(s.Taken()) != 1 {
		t.Error(err)
	}
	to.Password = "another"
	if err := send(t, to); err == nil || len(s.Taken()) != 1 {
		t.Error("another password is taken")
	}
	open := sink.NewMails(t)
	nobody := server(open)
	nobody.Username, nobody.Password = "jo", "secret"
	if err := send(t, nobody); err == nil || !strings.Contains(err.Error(), "takes no username and password") || len(open.Taken()) != 0 {
		t.Error(err)
	}
}

// Only of a message that went out whole and was not answered nobody knows.
func TestWhatIsKnownOfAMail(t *testing.T) {
	t.Parallel()
	for fault, want := range map[sink.MailFault]struct {
		code  int
		doubt bool
	}{
		sink.MailLater: {451, false}, sink.MailFull: {452, false}, sink.MailSpam: {554, false}, sink.MailDrops: {0, false}, sink.MailRefuses: {0, false},
		sink.MailTakesDrops: {0, true}, sink.MailLoses: {0, true},
	} {
		s := sink.NewMails(t)
		s.Fails(func() sink.MailFault { return fault })
		err := send(t, server(s))
		code := 0
		if told := mail.Refusal(err); told != nil {
			code = told.Code
		}
		if err == nil || errors.Is(err, mail.ErrUnanswered) != want.doubt || code != want.code {
			t.Errorf("fault %d: %v", fault, err)
		}
	}
}

// A server that goes on talking is not listened to for ever.
func TestAnEndlessServer(t *testing.T) {
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
	if err := send(t, s); err == nil || !strings.Contains(err.Error(), "answers more than can be read") {
		t.Error(err)
	}
}

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
