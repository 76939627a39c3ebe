package config

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/mail"
)

// SMTP is a mail server.
type SMTP struct {
	// Host is the server's name, which its certificate must have.
	Host string `yaml:"host,omitempty"`
	// Port is where it takes mail of users (submission).
	Port int `yaml:"port,omitempty" shown:"587; 465 with tls: implicit" validate:"omitempty,gte=1,lte=65535"`
	// TLS says how the connection is encrypted: required (by STARTTLS, without which nothing is sent), implicit (from the first byte on) or none, which is for addresses that allow names alone.
	TLS string `yaml:"tls,omitempty" shown:"required" validate:"omitempty,oneof=required implicit none"`
	// Username is the credential's name; leave unset where the server asks for none.
	Username string `yaml:"username,omitempty"`
	// Password is the credential.
	Password APIKey `yaml:"password,omitempty"`
	// From is whom mail is from, e.g. Shop <shop@example.com>. Its domain stands in each Message-ID.
	From string `yaml:"from,omitempty"`
}

// EffectMail is a mail that a step sends. Each text is a template; no value can make another address, header or line of one.
type EffectMail struct {
	// To is whom it is sent to: an address or NAME <ADDRESS>, or a list of them. Each is one address.
	To Words `yaml:"to,omitempty"`
	// Cc are others it is sent to. One whose template comes to an empty text is left out.
	Cc Words `yaml:"cc,omitempty"`
	// ReplyTo is whom answers go to. One whose template comes to an empty text is left out.
	ReplyTo Words `yaml:"reply_to,omitempty"`
	// Subject is one line.
	Subject string `yaml:"subject,omitempty"`
	// Text is the mail as plain text.
	Text string `yaml:"text,omitempty"`
	// HTML is the same for those who show HTML. Values are escaped.
	HTML string `yaml:"html,omitempty"`
	// Headers are further ones.
	Headers map[string]string `yaml:"headers,omitempty"`
}

const (
	portSubmission = 587
	portImplicit   = 465
)

const (
	callTimeout = 30 * time.Second
	// mailTimeout is longer: whoever ends a dialogue after the message does not know whether it was taken. RFC 5321 (4.5.3.2.6) would have us wait for ten minutes, for as long as which an effect whose process ended would be left alone.
	mailTimeout = 2 * time.Minute
)

// completeTimeout fills in how long a call to the destination may take.
func (d *Destination) completeTimeout() {
	if d.Timeout == 0 {
		d.Timeout = callTimeout
		if !isZero(d.SMTP) {
			d.Timeout = mailTimeout
		}
	}
}

// read fetches the password from where it is kept.
func (s *SMTP) read(env func(string) string, p purpose) error {
	if s.Password.unset() {
		return nil
	}
	secret := Secret{Value: s.Password.Value, Env: s.Password.Env, File: s.Password.File}
	if err := secret.read(env, p); err != nil {
		return err
	}
	if strings.ContainsAny(string(secret.secret), "\x00\r\n") {
		return errors.New("holds a line end or NUL: give the password alone")
	}
	s.Password.key = secret.secret
	return nil
}

// Server is the mail server as it is talked to.
func (s *SMTP) server() *mail.Server {
	out := &mail.Server{Host: s.Host, Port: cmp.Or(s.Port, portSubmission), Security: mail.Security(cmp.Or(s.TLS, string(mail.Required))), Username: s.Username, Password: string(s.Password.key), From: s.from(), Hello: mail.Domain(s.from().Address)}
	if s.Port == 0 && out.Security == mail.Implicit {
		out.Port = portImplicit
	}
	return out
}

// from is whom mail is from; none where it cannot be read, which check tells.
func (s *SMTP) from() mail.Address {
	a, _ := mail.ParseAddress(s.From)
	return a
}

// secrets are texts that nothing stored may hold.
func (s *SMTP) secrets() []string {
	if len(s.Password.key) == 0 {
		return nil
	}
	password := string(s.Password.key)
	coded := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return secretForms(password, coded(password), coded("\x00"+s.Username+"\x00"+password))
}

// repeatable says whether the other side does a step once however often it is sent. A mail server does not.
func (s *EffectStep) repeatable() bool { return !s.Once && isZero(s.Mail) }

// onceBy is the setting by which a step is not repeatable.
func (s *EffectStep) onceBy() string {
	if s.Once {
		return ".once"
	}
	return ".mail"
}

// captures are the names of what later steps see of a step.
func (s *EffectStep) captures() []string {
	if !isZero(s.Mail) {
		return []string{rules.CapturedID}
	}
	return sortedKeys(s.Capture)
}

// asked is what a check of the step may name: of a mail, whose Message-ID is known before it is sent, that too.
func (s *EffectStep) asked(scope rules.Scope) rules.Scope {
	if isZero(s.Mail) {
		return scope
	}
	scope.Steps = maps.Clone(scope.Steps)
	scope.Steps[s.Name] = s.captures()
	return scope
}

// checkMail tells what is wrong with a destination that is a mail server.
func (d *Destination) checkMail(path string) error {
	var bad []error
	fail := func(setting, format string, args ...any) {
		bad = append(bad, &Problem{Path: path + "." + setting, Msg: fmt.Sprintf(format, args...)})
	}
	s := &d.SMTP
	if d.URL != "" || d.Header != "" || len(d.Headers) > 0 || !d.Key.unset() || !d.SigningSecret.unset() {
		fail("smtp", "a mail server has no url, key, header, headers and signing_secret: leave them out, or make another destination of them")
	}
	if s.Host == "" || strings.ContainsAny(s.Host, "/:@ ") {
		fail("smtp.host", "%q is no name of a server: write e.g. smtp.example.com; its port is a setting of its own", s.Host)
	}
	if _, err := mail.ParseAddress(s.From); err != nil {
		fail("smtp.from", "%v", err)
	}
	if (s.Username == "") != s.Password.unset() || strings.ContainsAny(s.Username, "\x00\r\n") {
		fail("smtp.username", "username and password go together: set both or neither")
	}
	if s.TLS == string(mail.None) {
		switch {
		case len(d.Allow) == 0:
			fail("smtp.tls", "none is for addresses that allow names: name the server's there, or write required")
		case s.Username != "" && !onThisMachine(s.Host):
			fail("smtp.tls", "without TLS everyone on the way reads the password: write required")
		}
	}
	return errors.Join(bad...)
}

// mail compiles a step that sends one.
func (b *ruleBuilder) mail(at string, s *EffectStep, to *Destination, scope rules.Scope) rules.Request {
	m, from := &s.Mail, to.SMTP.from()
	if isZero(to.SMTP) {
		b.fail(at+".to", "destination %s is no mail server: give the step a path, or name a destination that has smtp", s.To)
	}
	if s.Path != "" || s.Method != http.MethodPost || s.Forward || s.JSON != nil || s.Form != nil || s.Text != "" || len(s.Headers) > 0 || len(s.Success) > 0 || len(s.Capture) > 0 || len(s.Retry.On) > 0 || !isZero(s.Compensate) {
		b.fail(at+".mail", "a mail is all that the step sends, and cannot be taken back: leave path, method, forward, json, form, text, headers, success, capture, retry.on and compensate out; steps.%s.message_id is captured by itself", s.Name)
	}
	if len(m.To) == 0 {
		b.fail(at+".mail.to", "is not set: say whom the mail goes to")
	}
	if m.Subject == "" || m.Text == "" {
		b.fail(at+".mail", "write subject and text")
	}
	out := &rules.Mail{From: from, To: b.addresses(at+".mail.to", m.To, scope), Cc: b.addresses(at+".mail.cc", m.Cc, scope), ReplyTo: b.addresses(at+".mail.reply_to", m.ReplyTo, scope),
		Subject: b.text(at+".mail.subject", m.Subject, scope), Text: b.text(at+".mail.text", m.Text, scope), Headers: map[string]*rules.Text{}}
	if m.HTML != "" {
		out.HTML = b.text(at+".mail.html", m.HTML, scope)
	}
	var seen []string
	for _, name := range sortedKeys(m.Headers) {
		if err := mail.Header(name); err != nil || slices.Contains(seen, strings.ToLower(name)) {
			b.fail(at+".mail.headers."+name, "%v", cmp.Or(err, errors.New("is there twice")))
		}
		seen = append(seen, strings.ToLower(name))
		out.Headers[name] = b.text(at+".mail.headers."+name, m.Headers[name], scope)
	}
	return rules.Request{Mail: out}
}

func (b *ruleBuilder) addresses(at string, texts []string, scope rules.Scope) (all []*rules.Address) {
	for i, text := range texts {
		a, err := rules.CompileAddress(text, scope)
		if err != nil {
			b.fail(fmt.Sprintf("%s.%d", at, i), "%v", err)
		}
		all = append(all, a)
	}
	return all
}
