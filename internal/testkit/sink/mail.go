package sink

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// MailFault is a fault of a mail.
type MailFault int

// The faults of mail.
const (
	MailNoFault            MailFault = iota
	MailTemporaryFailure             // 451 at MAIL, not accepted
	MailUnknownRecipient             // 550 at the last RCPT, not accepted
	MailboxFull                      // 452 after the message, not accepted
	MailRejectedAsSpam               // 554 after the message, not accepted
	MailDropsBeforeMessage           // the connection ends before the message, not accepted
	MailDropsAfterMessage            // the connection ends after the message, not accepted
	MailAcceptsThenDrops             // the message is accepted and the connection ends before the response
	MailAcceptsThenHangs             // the message is accepted and the response never comes
	MailDropsBeforeBanner            // the connection ends before the banner of the server
)

// Mail is an accepted mail.
type Mail struct {
	From string
	To   []string
	// Message is the text as it was sent, with CRLF line ends.
	Message string
}

// MailSettings are the settings of a mail server.
type MailSettings struct {
	// Username and Password are required if they are set.
	Username, Password string
	// LoginOnly: the server supports the mechanism LOGIN, but not PLAIN.
	LoginOnly bool
	// TLS is the configuration for STARTTLS. Nil means that the server does not offer it. The one
	// from Certificate is for 127.0.0.1.
	TLS *tls.Config
}

// MailServer accepts mail and fails in the ways of real mail servers.
type MailServer struct {
	Host string
	Port int

	mu          sync.Mutex
	settings    MailSettings
	nextFault   func() MailFault
	accepted    []Mail
	received    []string
	connections int
	// hanging counts the senders that get no response.
	hanging atomic.Int64
}

// NewMailServer starts a mail server. It stops with the test.
func NewMailServer(t testing.TB) *MailServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &MailServer{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			all.Go(func() {
				defer conn.Close()
				_ = s.serve(conn) // the sender reports the result
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return s
}

// Certificate returns a certificate for 127.0.0.1 and a pool that trusts it.
func Certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return &tls.Config{Certificates: server.TLS.Certificates}, pool
}

// SetSettings sets the settings for the following mails.
func (s *MailServer) SetSettings(settings MailSettings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings = settings
}

// SetFaults sets the function that chooses the fault of each following mail. Several goroutines
// call it.
func (s *MailServer) SetFaults(next func() MailFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextFault = next
}

// Accepted returns the accepted mails.
func (s *MailServer) Accepted() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.accepted...)
}

// Received returns all complete messages, accepted or not.
func (s *MailServer) Received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.received...)
}

// Connections returns the number of connections.
func (s *MailServer) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

var errSessionOver = errors.New("the session is over")

// session is one connection.
type session struct {
	server *MailServer
	conn   net.Conn
	*textproto.Conn
	settings                 MailSettings
	fault                    MailFault
	encrypted, authenticated bool
	mail                     Mail
}

func (s *MailServer) serve(conn net.Conn) error {
	d := &session{server: s, conn: conn, Conn: textproto.NewConn(conn)}
	s.mu.Lock()
	s.connections++
	d.settings, d.authenticated = s.settings, s.settings.Username == ""
	next := s.nextFault
	s.mu.Unlock()
	if next != nil {
		d.fault = next()
	}
	if d.fault == MailDropsBeforeBanner {
		return errSessionOver
	}
	if err := d.PrintfLine("220 sink ESMTP"); err != nil {
		return err
	}
	for {
		line, err := d.ReadLine()
		if err != nil {
			return err
		}
		if err := d.command(line); err != nil {
			return err
		}
	}
}

func (d *session) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb = strings.ToUpper(verb); {
	case verb == "EHLO":
		return d.ehlo()
	case verb == "QUIT":
		return errSessionOver
	case verb == "STARTTLS" && d.settings.TLS != nil:
		return d.encrypt()
	case verb == "AUTH":
		return d.auth(rest)
	case !d.authenticated:
		return d.PrintfLine("530 5.7.0 who are you?")
	case verb == "MAIL" && d.fault == MailTemporaryFailure:
		return d.PrintfLine("451 4.3.0 come again")
	case verb == "MAIL":
		d.mail = Mail{From: addressIn(rest)}
		return d.PrintfLine("250 fine")
	case verb == "RCPT":
		d.mail.To = append(d.mail.To, addressIn(rest))
		if d.fault == MailUnknownRecipient && strings.HasPrefix(addressIn(rest), "nobody") {
			return d.PrintfLine("550 5.1.1 <%s> is not here", addressIn(rest))
		}
		return d.PrintfLine("250 fine")
	case verb == "DATA" && len(d.mail.To) > 0:
		return d.data()
	}
	return d.PrintfLine("503 5.5.1 not now")
}

func (d *session) ehlo() error {
	lines := []string{"sink", "8BITMIME", "SMTPUTF8"}
	if d.settings.TLS != nil && !d.encrypted {
		lines = append(lines, "STARTTLS")
	}
	if d.settings.Username != "" {
		lines = append(lines, "AUTH "+d.mechanism())
	}
	for i, line := range lines {
		sign := "-"
		if i == len(lines)-1 {
			sign = " "
		}
		if err := d.PrintfLine("250%s%s", sign, line); err != nil {
			return err
		}
	}
	return nil
}

func (d *session) encrypt() error {
	if err := d.PrintfLine("220 go on"); err != nil {
		return err
	}
	safe := tls.Server(d.conn, d.settings.TLS)
	d.conn, d.Conn, d.encrypted = safe, textproto.NewConn(safe), true
	return nil
}

func (d *session) mechanism() string {
	if d.settings.LoginOnly {
		return "LOGIN"
	}
	return "PLAIN"
}

// login asks for name and password with the mechanism LOGIN.
func (d *session) login() error {
	if err := d.expect("Username:", d.settings.Username); err != nil {
		return err
	}
	if err := d.expect("Password:", d.settings.Password); err != nil {
		return err
	}
	d.authenticated = true
	return d.PrintfLine("235 welcome")
}

// expect asks for a value and ends the session when the client sends another one.
func (d *session) expect(question, want string) error {
	if err := d.PrintfLine("334 %s", base64.StdEncoding.EncodeToString([]byte(question))); err != nil {
		return err
	}
	got, err := d.ReadLine()
	if err == nil && got != base64.StdEncoding.EncodeToString([]byte(want)) {
		err = errSessionOver
	}
	return err
}

func (d *session) auth(rest string) error {
	if d.settings.LoginOnly && rest == "LOGIN" {
		return d.login()
	}
	want := base64.StdEncoding.EncodeToString([]byte("\x00" + d.settings.Username + "\x00" + d.settings.Password))
	if rest != "PLAIN "+want {
		return d.PrintfLine("535 5.7.8 not with %s", rest)
	}
	d.authenticated = true
	return d.PrintfLine("235 welcome")
}

func (d *session) data() error {
	if d.fault == MailDropsBeforeMessage {
		return errSessionOver
	}
	if err := d.PrintfLine("354 go on"); err != nil {
		return err
	}
	message, err := readMessage(d.R)
	if err != nil {
		return err
	}
	d.server.mu.Lock()
	d.server.received = append(d.server.received, message)
	d.server.mu.Unlock()
	switch d.fault {
	case MailDropsAfterMessage:
		return errSessionOver
	case MailboxFull:
		return d.PrintfLine("452 4.2.2 full")
	case MailRejectedAsSpam:
		return d.PrintfLine("554 5.7.1 spam")
	default:
	}
	d.mail.Message = message
	d.server.mu.Lock()
	d.server.accepted = append(d.server.accepted, d.mail)
	n := len(d.server.accepted)
	d.server.mu.Unlock()
	switch d.fault {
	case MailAcceptsThenDrops:
		return errSessionOver
	case MailAcceptsThenHangs:
		d.server.hanging.Add(1)
		defer d.server.hanging.Add(-1)
		_, err := d.R.ReadByte() // until the sender disconnects
		return err
	default:
	}
	return d.PrintfLine("250 2.0.0 taken as %d", n)
}

// readMessage reads a message up to its final dot. It rejects line ends other than CRLF.
func readMessage(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		switch {
		case err != nil:
			return "", err
		case line == ".\r\n":
			return b.String(), nil
		case strings.Count(line, "\r") != 1 || !strings.HasSuffix(line, "\r\n"):
			return "", fmt.Errorf("line %q", line)
		}
		b.WriteString(strings.TrimPrefix(line, "."))
	}
}

// addressIn returns the text between < and >.
func addressIn(text string) string {
	_, text, _ = strings.Cut(text, "<")
	text, _, _ = strings.Cut(text, ">")
	return text
}
