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

// MailFault is what goes wrong with a mail.
type MailFault int

// The faults of mail.
const (
	MailFine       MailFault = iota
	MailLater                // 451 at MAIL, nothing taken
	MailNobody               // 550 at the last RCPT, nothing taken
	MailFull                 // 452 after the dot, nothing taken
	MailSpam                 // 554 after the dot, nothing taken
	MailDrops                // the connection ends before the message, nothing taken
	MailLoses                // the connection ends after the dot, nothing taken
	MailTakesDrops           // the message is taken, and the connection ends before the answer
	MailTakesHangs           // the message is taken, and no answer comes for as long as the sender waits
	MailRefuses              // the connection ends before the greeting
)

// Mail is one that was taken.
type Mail struct {
	From string
	To   []string
	// Message is as it was sent, with CRLF at the ends of lines.
	Message string
}

// MailSettings are what a mail server asks for.
type MailSettings struct {
	// Username and Password are asked for where they are set.
	Username, Password string
	// Login: it knows the mechanism LOGIN alone, not PLAIN.
	Login bool
	// TLS is what STARTTLS encrypts with; nil: it is not offered. Cert's is for 127.0.0.1.
	TLS *tls.Config
}

// Mails is a mail server that takes mail, and lies as real ones do.
type Mails struct {
	Host string
	Port int

	mu    sync.Mutex
	asks  MailSettings
	next  func() MailFault
	taken []Mail
	heard []string
	tries int
	// hanging is how many senders get no answer for as long as they wait.
	hanging atomic.Int64
}

// NewMails starts a mail server. It ends with the test.
func NewMails(t testing.TB) *Mails {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Mails{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
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
				_ = s.serve(conn) // whoever sends tells what came of it
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

// Cert is a certificate for 127.0.0.1, and who trusts it.
func Cert(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return &tls.Config{Certificates: server.TLS.Certificates}, pool
}

// Asks sets what the server asks for from the next mail on.
func (s *Mails) Asks(what MailSettings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks = what
}

// Fails sets what says the fault of each mail from the next one on; it is called by several goroutines.
func (s *Mails) Fails(next func() MailFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = next
}

// Taken are the mails that were taken.
func (s *Mails) Taken() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.taken...)
}

// Heard are all messages that came up to their dot, taken or not.
func (s *Mails) Heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.heard...)
}

// Tries counts connections.
func (s *Mails) Tries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

var errGone = errors.New("the dialogue is over")

// dialogue is one connection.
type dialogue struct {
	s    *Mails
	conn net.Conn
	*textproto.Conn
	asks       MailSettings
	fault      MailFault
	safe, user bool
	mail       Mail
}

func (s *Mails) serve(conn net.Conn) error {
	d := &dialogue{s: s, conn: conn, Conn: textproto.NewConn(conn)}
	s.mu.Lock()
	s.tries++
	d.asks, d.user = s.asks, s.asks.Username == ""
	next := s.next
	s.mu.Unlock()
	if next != nil {
		d.fault = next()
	}
	if d.fault == MailRefuses {
		return errGone
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

func (d *dialogue) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb = strings.ToUpper(verb); {
	case verb == "EHLO":
		return d.hello()
	case verb == "QUIT":
		return errGone
	case verb == "STARTTLS" && d.asks.TLS != nil:
		return d.encrypt()
	case verb == "AUTH":
		return d.auth(rest)
	case !d.user:
		return d.PrintfLine("530 5.7.0 who are you?")
	case verb == "MAIL" && d.fault == MailLater:
		return d.PrintfLine("451 4.3.0 come again")
	case verb == "MAIL":
		d.mail = Mail{From: between(rest)}
		return d.PrintfLine("250 fine")
	case verb == "RCPT":
		d.mail.To = append(d.mail.To, between(rest))
		if d.fault == MailNobody && strings.HasPrefix(between(rest), "nobody") {
			return d.PrintfLine("550 5.1.1 <%s> is not here", between(rest))
		}
		return d.PrintfLine("250 fine")
	case verb == "DATA" && len(d.mail.To) > 0:
		return d.data()
	}
	return d.PrintfLine("503 5.5.1 not now")
}

func (d *dialogue) hello() error {
	lines := []string{"sink", "8BITMIME", "SMTPUTF8"}
	if d.asks.TLS != nil && !d.safe {
		lines = append(lines, "STARTTLS")
	}
	if d.asks.Username != "" {
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

func (d *dialogue) encrypt() error {
	if err := d.PrintfLine("220 go on"); err != nil {
		return err
	}
	safe := tls.Server(d.conn, d.asks.TLS)
	d.conn, d.Conn, d.safe = safe, textproto.NewConn(safe), true
	return nil
}

func (d *dialogue) mechanism() string {
	if d.asks.Login {
		return "LOGIN"
	}
	return "PLAIN"
}

// login asks for name and password, as the mechanism LOGIN does.
func (d *dialogue) login() error {
	if err := d.asked("Username:", d.asks.Username); err != nil {
		return err
	}
	if err := d.asked("Password:", d.asks.Password); err != nil {
		return err
	}
	d.user = true
	return d.PrintfLine("235 welcome")
}

// asked asks, and ends the dialogue where something else is answered.
func (d *dialogue) asked(question, want string) error {
	if err := d.PrintfLine("334 %s", base64.StdEncoding.EncodeToString([]byte(question))); err != nil {
		return err
	}
	got, err := d.ReadLine()
	if err == nil && got != base64.StdEncoding.EncodeToString([]byte(want)) {
		err = errGone
	}
	return err
}

func (d *dialogue) auth(rest string) error {
	if d.asks.Login && rest == "LOGIN" {
		return d.login()
	}
	want := base64.StdEncoding.EncodeToString([]byte("\x00" + d.asks.Username + "\x00" + d.asks.Password))
	if rest != "PLAIN "+want {
		return d.PrintfLine("535 5.7.8 not with %s", rest)
	}
	d.user = true
	return d.PrintfLine("235 welcome")
}

func (d *dialogue) data() error {
	if d.fault == MailDrops {
		return errGone
	}
	if err := d.PrintfLine("354 go on"); err != nil {
		return err
	}
	message, err := undotted(d.R)
	if err != nil {
		return err
	}
	d.s.mu.Lock()
	d.s.heard = append(d.s.heard, message)
	d.s.mu.Unlock()
	switch d.fault {
	case MailLoses:
		return errGone
	case MailFull:
		return d.PrintfLine("452 4.2.2 full")
	case MailSpam:
		return d.PrintfLine("554 5.7.1 spam")
	default:
	}
	d.mail.Message = message
	d.s.mu.Lock()
	d.s.taken = append(d.s.taken, d.mail)
	n := len(d.s.taken)
	d.s.mu.Unlock()
	switch d.fault {
	case MailTakesDrops:
		return errGone
	case MailTakesHangs:
		d.s.hanging.Add(1)
		defer d.s.hanging.Add(-1)
		_, err := d.R.ReadByte() // until the sender leaves
		return err
	default:
	}
	return d.PrintfLine("250 2.0.0 taken as %d", n)
}

// undotted reads a message up to its dot, byte for byte: what has a line end of another kind than CRLF is refused.
func undotted(r *bufio.Reader) (string, error) {
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

// between is what is between < and >.
func between(text string) string {
	_, text, _ = strings.Cut(text, "<")
	text, _, _ = strings.Cut(text, ">")
	return text
}
