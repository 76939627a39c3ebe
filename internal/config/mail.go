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
	"github.com/postern-gateway/postern/internal/settings"
)

// SMTP is a mail server.
type SMTP struct {
	// Host is the server's host name. The server's certificate must be valid for this name.
	Host string `yaml:"host,omitempty"`
	// Port is the port for mail submission.
	Port int `yaml:"port,omitempty" unset:"587; 465 with tls: implicit" validate:"omitempty,gte=1,lte=65535"`
	// TLS says how the connection is encrypted. required uses STARTTLS, and sends nothing without
	// it. implicit encrypts from the first byte. none is allowed only for addresses in allow.
	TLS string `yaml:"tls,omitempty" unset:"required" validate:"omitempty,oneof=required implicit none"`
	// Username is the name of the account at the server. Leave it unset if the server requires
	// none.
	Username string `yaml:"username,omitempty"`
	// Password is the password of that account.
	Password APIKey `yaml:"password,omitempty"`
	// From is the sender of the mail, e.g. Shop <shop@example.com>. Its domain is part of each
	// Message-ID.
	From string `yaml:"from,omitempty"`
}

// EffectMail is a mail that a step sends. Each text is a template. A value cannot add another
// address, header or line.
type EffectMail struct {
	// To is the recipient, or a list of recipients. Each entry is one address, or NAME <ADDRESS>.
	To settings.List[string] `yaml:"to,omitempty"`
	// Cc are further recipients. Postern leaves out an entry whose template yields an empty text.
	Cc settings.List[string] `yaml:"cc,omitempty"`
	// ReplyTo are the addresses for replies. Postern leaves out an entry whose template yields an
	// empty text.
	ReplyTo settings.List[string] `yaml:"reply_to,omitempty"`
	// Subject is the subject of the mail, in one line.
	Subject string `yaml:"subject,omitempty"`
	// Text is the mail as plain text.
	Text string `yaml:"text,omitempty"`
	// HTML is the mail as HTML. Postern escapes values.
	HTML string `yaml:"html,omitempty"`
	// Headers are additional headers.
	Headers map[string]string `yaml:"headers,omitempty"`
}

const (
	portSubmission = 587
	portImplicit   = 465
)

const (
	callTimeout = 30 * time.Second
	// mailTimeout is longer: if the dialogue ends after the message was sent, it is unknown whether
	// the server accepted it. RFC 5321 (4.5.3.2.6) recommends ten minutes, but an effect whose
	// process ended would wait as long.
	mailTimeout = 2 * time.Minute
)

// completeTimeout sets the default timeout of a call.
func (d *Destination) completeTimeout() {
	if d.Timeout == 0 {
		d.Timeout = callTimeout
		if !settings.IsZero(d.SMTP) {
			d.Timeout = mailTimeout
		}
	}
}

// read loads the password from the variable or file.
func (s *SMTP) read(env func(string) string, p loadOptions) error {
	if s.Password.isUnset() {
		return nil
	}
	secret := Secret{Value: s.Password.Value, Env: s.Password.Env, File: s.Password.File}
	if err := secret.read(env, p); err != nil {
		return err
	}
	if strings.ContainsAny(string(secret.secret), "\x00\r\n") {
		return errors.New("contains a line break or NUL: give only the password")
	}
	s.Password.key = secret.secret
	return nil
}

// server returns the mail server for package mail.
func (s *SMTP) server() *mail.Server {
	out := &mail.Server{Host: s.Host, Port: cmp.Or(s.Port, portSubmission),
		Security: mail.Security(cmp.Or(s.TLS, string(mail.Required))), Username: s.Username,
		Password: string(s.Password.key), From: s.fromAddress(), Hello: mail.Domain(s.fromAddress().Address)}
	if s.Port == 0 && out.Security == mail.Implicit {
		out.Port = portImplicit
	}
	return out
}

// fromAddress returns the sender; empty where it cannot be parsed, which check reports.
func (s *SMTP) fromAddress() mail.Address {
	a, _ := mail.ParseAddress(s.From)
	return a
}

// secrets returns texts that must not be stored.
func (s *SMTP) secrets() []string {
	if len(s.Password.key) == 0 {
		return nil
	}
	password := string(s.Password.key)
	coded := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return secretForms(password, coded(password), coded("\x00"+s.Username+"\x00"+password))
}

// isRepeatable reports whether the destination executes a step once, however often it gets it. A
// mail server does not.
func (s *EffectStep) isRepeatable() bool { return !s.AtMostOnce && settings.IsZero(s.Mail) }

// atMostOnceSetting returns the setting that makes a step not repeatable.
func (s *EffectStep) atMostOnceSetting() string {
	if s.AtMostOnce {
		return ".at_most_once"
	}
	return ".mail"
}

// captureNames returns the names of the values that later steps may use.
func (s *EffectStep) captureNames() []string {
	if !settings.IsZero(s.Mail) {
		return []string{rules.CapturedMessageID}
	}
	return sortedKeys(s.Capture)
}

// checkScope returns the names that a step's check may use. For a mail they include its Message-ID,
// which is known before it is sent.
func (s *EffectStep) checkScope(scope rules.Scope) rules.Scope {
	if settings.IsZero(s.Mail) {
		return scope
	}
	scope.Steps = maps.Clone(scope.Steps)
	scope.Steps[s.Name] = s.captureNames()
	return scope
}

// checkMail returns the problems of a destination that is a mail server.
func (d *Destination) checkMail(path string) error {
	var bad []error
	fail := func(setting, format string, args ...any) {
		bad = append(bad, &settings.Problem{Path: path + "." + setting, Msg: fmt.Sprintf(format, args...)})
	}
	s := &d.SMTP
	if d.URL != "" || d.Header != "" || len(d.Headers) > 0 || !d.Key.isUnset() || !d.SigningSecret.isUnset() {
		fail("smtp", "a mail server has no url, key, header, headers and signing_secret: leave them out, or use "+
			"another destination for them")
	}
	if s.Host == "" || strings.ContainsAny(s.Host, "/:@ ") {
		fail("smtp.host", "%q is not a host name: write e.g. smtp.example.com; the port has its own setting", s.Host)
	}
	if _, err := mail.ParseAddress(s.From); err != nil {
		fail("smtp.from", "%v", err)
	}
	if (s.Username == "") != s.Password.isUnset() || strings.ContainsAny(s.Username, "\x00\r\n") {
		fail("smtp.username", "username and password belong together: set both or neither")
	}
	if s.TLS == string(mail.None) {
		switch {
		case len(d.Allow) == 0:
			fail("smtp.tls", "none is allowed only for addresses in allow: add the server's there, or write required")
		case s.Username != "" && !isLoopbackHost(s.Host):
			fail("smtp.tls", "without TLS everyone on the network path can read the password: write required")
		}
	}
	return errors.Join(bad...)
}

// mail compiles a step that sends a mail.
func (b *ruleBuilder) mail(at string, s *EffectStep, to *Destination, scope rules.Scope) rules.Request {
	m, from := &s.Mail, to.SMTP.fromAddress()
	if settings.IsZero(to.SMTP) {
		b.fail(at+".to", "destination %s is not a mail server: give the step a path, or name a destination with smtp",
			s.To)
	}
	if s.Path != "" || s.Method != http.MethodPost || s.Forward || s.JSON != nil || s.Form != nil || s.Text != "" ||
		len(s.Headers) > 0 || len(s.Success) > 0 || len(s.Capture) > 0 || len(s.Retry.Statuses) > 0 ||
		!settings.IsZero(s.Compensate) {
		b.fail(at+".mail", "a step with mail sends only that, and cannot be undone: leave path, method, "+
			"forward, json, form, text, headers, success, capture, retry.on and compensate out; steps.%s.message_id "+
			"is captured automatically", s.Name)
	}
	if len(m.To) == 0 {
		b.fail(at+".mail.to", "is not set: write the recipient")
	}
	if m.Subject == "" || m.Text == "" {
		b.fail(at+".mail", "set both subject and text")
	}
	out := &rules.Mail{From: from, To: b.addresses(at+".mail.to", m.To, scope),
		Cc: b.addresses(at+".mail.cc", m.Cc, scope), ReplyTo: b.addresses(at+".mail.reply_to", m.ReplyTo, scope),
		Subject: b.text(at+".mail.subject", m.Subject, scope), Text: b.text(at+".mail.text", m.Text, scope),
		Headers: map[string]*rules.Text{}}
	if m.HTML != "" {
		out.HTML = b.text(at+".mail.html", m.HTML, scope)
	}
	var seen []string
	for _, name := range sortedKeys(m.Headers) {
		if err := mail.CheckHeaderName(name); err != nil || slices.Contains(seen, strings.ToLower(name)) {
			b.fail(at+".mail.headers."+name, "%v", cmp.Or(err, errors.New("is set twice")))
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
