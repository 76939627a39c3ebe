package rules

import (
	"errors"
	"fmt"
	"html"
	"strings"

	"github.com/postern-gateway/postern/internal/mail"
)

// MethodMail marks a mail in the ledger, where other requests have their HTTP method.
const MethodMail = "MAIL"

// CapturedMessageID is the name under which later steps see the Message-ID of a mail.
const CapturedMessageID = "message_id"

// Mail is a message whose texts are templates.
type Mail struct {
	From mail.Address
	// To, Cc and ReplyTo are templates of one address each. In Cc and ReplyTo an address may render
	// to nothing.
	To, Cc, ReplyTo     []*Address
	Subject, Text, HTML *Text
	// Headers are additional headers; their names were checked.
	Headers map[string]*Text
}

// Address is a template of exactly one address. No value can turn it into two.
type Address struct {
	// name is nil if the template consists of the address only.
	name, address *Text
}

// CompileAddress checks a template of an address: ADDRESS, or NAME <ADDRESS>.
func CompileAddress(text string, scope Scope) (*Address, error) {
	t, err := CompileText(text, scope)
	if err != nil {
		return nil, err
	}
	if len(t.parts) == 1 && t.parts[0].expr == nil {
		if _, err := mail.ParseAddress(text); err != nil {
			return nil, err
		}
	}
	name, address, ok := t.splitAngleAddress()
	if !ok {
		return &Address{address: t}, nil
	}
	return &Address{name: name, address: address}, nil
}

// splitAngleAddress returns the template before the last < of the literal text, and the template
// between that and the final >.
func (t *Text) splitAngleAddress() (before, within *Text, ok bool) {
	last := len(t.parts) - 1
	if last < 0 || t.parts[last].expr != nil {
		return nil, nil, false
	}
	end, ok := strings.CutSuffix(strings.TrimRight(t.parts[last].text, " "), ">")
	if !ok {
		return nil, nil, false
	}
	parts := append(append([]part{}, t.parts[:last]...), part{text: end})
	for i := last; i >= 0; i-- {
		at := strings.LastIndexByte(parts[i].text, '<')
		if parts[i].expr != nil || at < 0 {
			continue
		}
		name := strings.TrimSpace(parts[i].text[:at])
		before = &Text{parts: append(append([]part{}, parts[:i]...), part{text: name})}
		if i > 0 && name == "" {
			before.parts = before.parts[:i]
		}
		return before, &Text{parts: append([]part{{text: parts[i].text[at+1:]}}, parts[i+1:]...)}, true
	}
	return nil, nil, false
}

// Render renders the address. The result is empty if the template renders to nothing.
func (a *Address) Render(f *TemplateData) (out mail.Address, err error) {
	address, err := a.address.Render(f)
	if err != nil {
		return out, err
	}
	if a.name != nil {
		name, err := a.name.Render(f)
		if err != nil {
			return out, err
		}
		return mail.NewAddress(unquote(name), address)
	}
	if address == "" {
		return out, nil
	}
	if len(a.address.parts) > 1 { // a value that is only a part of the template must not be parsed as a whole address
		return mail.NewAddress("", address)
	}
	return mail.ParseAddress(address)
}

// unquote removes the quotes that a template has around a name, as mails write them.
func unquote(name string) string {
	name = strings.TrimSpace(name)
	if len(name) > 1 && name[0] == '"' && name[len(name)-1] == '"' {
		return name[1 : len(name)-1]
	}
	return name
}

// RenderHTML renders HTML. Values are escaped, so that they are text or the value of a quoted
// attribute.
func (t *Text) RenderHTML(f *TemplateData) (string, error) {
	return t.render(f, func(s, _ string) (string, error) { return html.EscapeString(s), nil })
}

// MessageID returns the Message-ID of a mail, without < and >. It consists of the step's key and
// the domain of the sender's address.
func MessageID(stepKey, from string) string { return stepKey + "@" + mail.Domain(from) }

var errNoRecipient = errors.New("renders to nothing, so that the mail would have no recipient")

// Render renders the templates. The Message-ID contains the step's key, and the date is the time
// when the step was leased.
func (m *Mail) Render(f *TemplateData) (out RenderedRequest, err error) {
	w := mail.Message{ID: MessageID(f.StepKey, m.From.Address), Date: f.ReservedAt, From: m.From,
		Headers: map[string]string{}}
	for _, of := range []struct {
		name      string
		templates []*Address
		into      *[]mail.Address
		must      bool
	}{{"to", m.To, &w.To, true}, {"cc", m.Cc, &w.Cc, false}, {"reply_to", m.ReplyTo, &w.ReplyTo, false}} {
		if *of.into, err = renderAddresses(of.templates, f, of.must); err != nil {
			return out, fmt.Errorf("mail.%s: %w", of.name, err)
		}
	}
	if err := m.renderTexts(f, &w); err != nil {
		return out, err
	}
	b, err := w.Bytes()
	if err != nil {
		return out, fmt.Errorf("mail: %w", err)
	}
	out = RenderedRequest{Method: MethodMail, From: m.From.Address, Body: string(b)}
	for _, a := range append(w.To, w.Cc...) {
		out.To = append(out.To, a.Address)
	}
	out.Path = strings.Join(out.To, ", ")
	return out, nil
}

func (m *Mail) renderTexts(f *TemplateData, w *mail.Message) (err error) {
	if w.Subject, err = m.Subject.Render(f); err != nil {
		return fmt.Errorf("mail.subject: %w", err)
	}
	if w.Text, err = m.Text.Render(f); err != nil {
		return fmt.Errorf("mail.text: %w", err)
	}
	if m.HTML != nil {
		if w.HTML, err = m.HTML.RenderHTML(f); err != nil {
			return fmt.Errorf("mail.html: %w", err)
		}
	}
	for name, of := range m.Headers {
		if w.Headers[name], err = of.Render(f); err != nil {
			return fmt.Errorf("mail.headers.%s: %w", name, err)
		}
	}
	return nil
}

func renderAddresses(templates []*Address, f *TemplateData, must bool) (all []mail.Address, err error) {
	for _, t := range templates {
		a, err := t.Render(f)
		switch {
		case err != nil:
			return nil, err
		case a.Address != "":
			all = append(all, a)
		case must:
			return nil, errNoRecipient
		}
	}
	return all, nil
}
