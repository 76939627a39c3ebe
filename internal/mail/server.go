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

// Security is how the connection to a server is encrypted.
type Security string

// The ways to encrypt a connection.
const (
	// Required uses STARTTLS, and sends nothing without it.
	Required Security = "required"
	// Implicit encrypts from the first byte.
	Implicit Security = "implicit"
	// None does not encrypt.
	None Security = "none"
)

// Server is a mail server that accepts messages.
type Server struct {
	Host     string
	Port     int
	Security Security
	// Username and Password are the credentials; if Username is empty, there are none.
	Username, Password string
	// From is the default sender.
	From Address
	// Hello is the name in the EHLO command.
	Hello string
	// Roots are the trusted authorities; nil means those of the system.
	Roots *x509.CertPool
}

// Dial opens a connection.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

var (
	// ErrNoResponse: the whole message was sent, and the server's response did not arrive. It is
	// unknown whether the server accepted it.
	ErrNoResponse      = errors.New("the whole message was sent, and no response came")
	errResponseTooLong = errors.New("the server sends more than can be read")
	errNoTLS           = errors.New("the server does not offer STARTTLS, so nothing was sent to it; tls: implicit is " +
		"for a port that is encrypted from the start")
	errNoAuth = errors.New("the server does not accept username and password by PLAIN or LOGIN")
)

// codeOK is the response to a command that succeeded.
const codeOK = 250

// maxResponseBytes bounds what is read from a server in one session.
const maxResponseBytes = 256 << 10

// Send submits a message once, to all of its recipients or to none. After any error except
// ErrNoResponse, the message was not accepted. Rejection returns the server's own error.
func (s *Server) Send(ctx context.Context, dial Dial, from string, to []string, message []byte) error {
	conn, err := dial(ctx, "tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	err = s.submit(ctx, &limitedConn{Conn: conn, remaining: maxResponseBytes}, from, to, message)
	if err != nil && ctx.Err() != nil && Rejection(err) == nil {
		return fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return err
}

// Rejection returns the error response of the server; nil if the error is another one.
func Rejection(err error) *textproto.Error {
	var rejection *textproto.Error
	if errors.Is(err, ErrNoResponse) || !errors.As(err, &rejection) {
		return nil
	}
	return rejection
}

func (s *Server) submit(ctx context.Context, conn net.Conn, from string, to []string, message []byte) error {
	c, err := s.openSession(conn)
	if err != nil {
		return err
	}
	if err := mailFrom(c, from); err != nil {
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
	if err := w.Close(); err != nil { // this sends the final dot: without a response now, the outcome is unknown
		var rejection *textproto.Error
		if errors.As(err, &rejection) && rejection.Code >= 400 {
			return fmt.Errorf("after the message: %w", err)
		}
		return fmt.Errorf("%w: %w", ErrNoResponse, err)
	}
	_ = c.Text.PrintfLine("QUIT") // the message was accepted, whatever happens to this command
	return nil
}

// mailFrom sends the MAIL FROM command. smtp.Client would request SMTPUTF8 whenever it is offered,
// and later servers on the way may not support it. All addresses and messages are ASCII.
func mailFrom(c *smtp.Client, from string) error {
	if strings.ContainsFunc(from, func(r rune) bool { return isControl(r) || strings.ContainsRune("<> ", r) }) {
		return fmt.Errorf("%q is not an address", from)
	}
	id, err := c.Text.Cmd("MAIL FROM:<%s>", from)
	if err != nil {
		return err
	}
	c.Text.StartResponse(id)
	defer c.Text.EndResponse(id)
	_, _, err = c.Text.ReadResponse(codeOK)
	return err
}

// openSession starts a session with encryption and authentication.
func (s *Server) openSession(conn net.Conn) (*smtp.Client, error) {
	tlsConfig := &tls.Config{ServerName: s.Host, RootCAs: s.Roots, MinVersion: tls.VersionTLS12}
	if s.Security == Implicit {
		conn = tls.Client(conn, tlsConfig)
	}
	c, err := smtp.NewClient(conn, s.Host)
	if err != nil {
		return nil, fmt.Errorf("server banner: %w", err)
	}
	if err := c.Hello(s.Hello); err != nil {
		return nil, fmt.Errorf("EHLO: %w", err)
	}
	if s.Security == Required {
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return nil, errNoTLS
		}
		if err := c.StartTLS(tlsConfig); err != nil {
			return nil, fmt.Errorf("STARTTLS: %w", err)
		}
	}
	if s.Username == "" {
		return c, nil
	}
	_, offered := c.Extension("AUTH")
	var auth smtp.Auth
	switch mechanisms := strings.Fields(strings.ToUpper(offered)); {
	case slices.Contains(mechanisms, "PLAIN"):
		auth = smtp.PlainAuth("", s.Username, s.Password, s.Host)
	case slices.Contains(mechanisms, "LOGIN"):
		auth = &login{s}
	default:
		return nil, errNoAuth
	}
	if err := c.Auth(auth); err != nil {
		return nil, fmt.Errorf("AUTH: %w", err)
	}
	return c, nil
}

// login implements the authentication mechanism LOGIN: username, then password.
type login struct{ s *Server }

// Start returns the name of the mechanism. As with PLAIN, nothing is sent without TLS, except to
// this machine.
func (l *login) Start(server *smtp.ServerInfo) (string, []byte, error) {
	if _, _, err := smtp.PlainAuth("", "", "", l.s.Host).Start(server); err != nil {
		return "", nil, err
	}
	return "LOGIN", nil, nil
}

// Next answers the server's challenges.
func (l *login) Next(question []byte, more bool) ([]byte, error) {
	switch {
	case !more:
		return nil, nil
	case bytes.HasPrefix(bytes.ToLower(question), []byte("user")):
		return []byte(l.s.Username), nil
	}
	return []byte(l.s.Password), nil
}

// limitedConn is a connection with a limit of bytes to read.
type limitedConn struct {
	net.Conn
	remaining int
}

// Read returns errResponseTooLong after the limit.
func (b *limitedConn) Read(p []byte) (int, error) {
	if b.remaining <= 0 {
		return 0, errResponseTooLong
	}
	n, err := b.Conn.Read(p[:min(len(p), b.remaining)])
	b.remaining -= n
	return n, err
}
