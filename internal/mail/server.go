package mail

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/smtp"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// Security is how a connection to a server is encrypted.
type Security string

// The ways to encrypt.
const (
	// Required: by STARTTLS, without which nothing is sent.
	Required Security = "required"
	// Implicit: from the first byte on.
	Implicit Security = "implicit"
	// None: not at all.
	None Security = "none"
)

// Server is where mail is handed in.
type Server struct {
	Host     string
	Port     int
	Security Security
	// Username and Password are the credential; without a name there is none.
	Username, Password string
	// From is whom mail is from that says nothing else.
	From Address
	// Hello is the name that the server is told.
	Hello string
	// Roots are the authorities that are trusted; nil: the system's.
	Roots *x509.CertPool
}

// Dial makes a connection.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

var (
	// ErrUnanswered: the whole message was sent, and the server's answer did not come. Nobody knows whether it was taken.
	ErrUnanswered = errors.New("the whole message was sent, and no answer came")
	errLong       = errors.New("the server answers more than can be read")
	errNoTLS      = errors.New("the server offers no STARTTLS, so nothing was sent to it; tls: implicit is for a port that is encrypted from the start")
	errNoAuth     = errors.New("the server takes no username and password by PLAIN or LOGIN")
)

// codeFine is a server's answer to a command that it has carried out.
const codeFine = 250

// maxAnswers bounds what is read of a server in one dialogue.
const maxAnswers = 256 << 10

// Send hands a message in, once, to all of its recipients or to none. Any error but ErrUnanswered says that it was not taken; Refusal reads the server's own.
func (s *Server) Send(ctx context.Context, dial Dial, from string, to []string, message []byte) error {
	conn, err := dial(ctx, "tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	err = s.converse(ctx, &bounded{Conn: conn, left: maxAnswers}, from, to, message)
	if err != nil && ctx.Err() != nil && Refusal(err) == nil {
		return fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return err
}

// Refusal is what the server said where that was no; nil: it is another error.
func Refusal(err error) *textproto.Error {
	var told *textproto.Error
	if errors.Is(err, ErrUnanswered) || !errors.As(err, &told) {
		return nil
	}
	return told
}

func (s *Server) converse(ctx context.Context, conn net.Conn, from string, to []string, message []byte) error {
	c, err := s.greet(conn)
	if err != nil {
		return err
	}
	if err := begin(c, from); err != nil {
		return fmt.Errorf("MAIL FROM: %w", err)
	}
	for _, address := range to {
		if err := c.Rcpt(address); err != nil {
			return fmt.Errorf("RCPT TO %s: %w", address, err)
		}
	}
	w, err := c.Data()
	if err != nil {
		return fmt.Errorf("DATA: %w", err)
	}
	if _, err := io.Copy(w, bytes.NewReader(message)); err != nil {
		return fmt.Errorf("send the message: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("send the message: %w", context.Cause(ctx))
	}
	if err := w.Close(); err != nil { // here the dot goes out: what is not answered now is in doubt
		var told *textproto.Error
		if errors.As(err, &told) && told.Code >= 400 {
			return fmt.Errorf("after the message: %w", err)
		}
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	_ = c.Text.PrintfLine("QUIT") // the message was taken, whatever becomes of this
	return nil
}

// begin says whom a message is from. smtp.Client would ask for SMTPUTF8 wherever it is offered, and so for servers on the whole way that know it; addresses and messages are ASCII.
func begin(c *smtp.Client, from string) error {
	if strings.ContainsFunc(from, func(r rune) bool { return control(r) || strings.ContainsRune("<> ", r) }) {
		return fmt.Errorf("%q is no address", from)
	}
	id, err := c.Text.Cmd("MAIL FROM:<%s>", from)
	if err != nil {
		return err
	}
	c.Text.StartResponse(id)
	defer c.Text.EndResponse(id)
	_, _, err = c.Text.ReadResponse(codeFine)
	return err
}

// greet begins a dialogue, encrypted and as somebody.
func (s *Server) greet(conn net.Conn) (*smtp.Client, error) {
	safe := &tls.Config{ServerName: s.Host, RootCAs: s.Roots, MinVersion: tls.VersionTLS12}
	if s.Security == Implicit {
		conn = tls.Client(conn, safe)
	}
	c, err := smtp.NewClient(conn, s.Host)
	if err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	if err := c.Hello(s.Hello); err != nil {
		return nil, fmt.Errorf("EHLO: %w", err)
	}
	if s.Security == Required {
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return nil, errNoTLS
		}
		if err := c.StartTLS(safe); err != nil {
			return nil, fmt.Errorf("STARTTLS: %w", err)
		}
	}
	if s.Username == "" {
		return c, nil
	}
	_, offered := c.Extension("AUTH")
	var auth smtp.Auth
	switch ways := strings.Fields(strings.ToUpper(offered)); {
	case slices.Contains(ways, "PLAIN"):
		auth = smtp.PlainAuth("", s.Username, s.Password, s.Host)
	case slices.Contains(ways, "LOGIN"):
		auth = &login{s}
	default:
		return nil, errNoAuth
	}
	if err := c.Auth(auth); err != nil {
		return nil, fmt.Errorf("AUTH: %w", err)
	}
	return c, nil
}

// login is the mechanism LOGIN: name, then password.
type login struct{ s *Server }

// Start names the mechanism. As with PLAIN, nothing is said without TLS but to this machine.
func (l *login) Start(server *smtp.ServerInfo) (string, []byte, error) {
	if _, _, err := smtp.PlainAuth("", "", "", l.s.Host).Start(server); err != nil {
		return "", nil, err
	}
	return "LOGIN", nil, nil
}

// Next answers the server's questions.
func (l *login) Next(question []byte, more bool) ([]byte, error) {
	switch {
	case !more:
		return nil, nil
	case bytes.HasPrefix(bytes.ToLower(question), []byte("user")):
		return []byte(l.s.Username), nil
	}
	return []byte(l.s.Password), nil
}

// bounded is a connection of which only so much is read.
type bounded struct {
	net.Conn
	left int
}

// Read reads what is left.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLong
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
