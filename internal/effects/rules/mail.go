package rules

import (
	"errors"
	"fmt"
	"html"
	"strings"

	"github.com/postern-gateway/postern/internal/mail"
)

// MethodMail stands in the ledger where a request has HTTP's method.
const MethodMail = "MAIL"

// CapturedID is the name by which later steps see the Message-ID of a mail.
const CapturedID = "message_id"

// Mail is a message whose texts are templates.
type Mail struct {
	From mail.Address
	// To, Cc and ReplyTo are templates of one address each. In Cc and ReplyTo one may come to nothing.
	To, Cc, ReplyTo     []*Address
	Subject, Text, HTML *Text
	// Headers are further ones; their names were checked.
	Headers map[string]*Text
}

// Address is a template of one address, which no value can make two of.
type Address struct {
	// name is nil where the template is the address alone.
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
	name, address, ok := t.angled()
	if !ok {
		return &Address{address: t}, nil
	}
	return &Address{name: name, address: address}, nil
}

// angled is what stands before the last < of the template's own text, and what between that and the > at its end.
func (t *Text) angled() (before, within *Text, ok bool) {
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

// Render is the address, whose text is empty where the template comes to nothing.
func (a *Address) Render(f *Facts) (out mail.Address, err error) {
	address, err := a.address.Render(f)
	if err != nil {
		return out, err
	}
	if a.name != nil {
		name, err := a.name.Render(f)
		if err != nil {
			return out, err
		}
		return mail.Named(unquoted(name), address)
	}
	if address == "" {
		return out, nil
	}
	if len(a.address.parts) > 1 { // a value that is a part of it is no whole address
		return mail.Named("", address)
	}
	return mail.ParseAddress(address)
}

// unquoted takes the quotes away that a template has around a name, as it would be written in a mail.
func unquoted(name string) string {
	name = strings.TrimSpace(name)
	if len(name) > 1 && name[0] == '"' && name[len(name)-1] == '"' {
		return name[1 : len(name)-1]
	}
	return name
}

// RenderHTML is Render for HTML: what expressions give is text in it, or a value of an attribute in quotes.
func (t *Text) RenderHTML(f *Facts) (string, error) {
	return t.render(f, func(s, _ string) (string, error) { return html.EscapeString(s), nil })
}

// MessageID is what a mail is known by everywhere, without its < and >: it is made of the step's key and of the domain of the address that it is from.
func MessageID(stepKey, from string) string { return stepKey + "@" + mail.Domain(from) }

var errNobody = errors.New("comes to nothing, so that the mail would go to nobody")

// Render fills the templates in. The message has the step's key in its Message-ID and the time of the step's reservation as its date.
func (m *Mail) Render(f *Facts) (out Rendered, err error) {
	w := mail.Message{ID: MessageID(f.StepKey, m.From.Address), Date: f.ReservedAt, From: m.From, Headers: map[string]string{}}
	for _, of := range []struct {
		name      string
		templates []*Address
		into      *[]mail.Address
		must      bool
	}{{"to", m.To, &w.To, true}, {"cc", m.Cc, &w.Cc, false}, {"reply_to", m.ReplyTo, &w.ReplyTo, false}} {
		if *of.into, err = addresses(of.templates, f, of.must); err != nil {
			return out, fmt.Errorf("mail.%s: %w", of.name, err)
		}
	}
	if err := m.texts(f, &w); err != nil {
		return out, err
	}
	b, err := w.Bytes()
	if err != nil {
		return out, fmt.Errorf("mail: %w", err)
	}
	out = Rendered{Method: MethodMail, From: m.From.Address, Body: string(b)}
	for _, a := range append(w.To, w.Cc...) {
		out.To = append(out.To, a.Address)
	}
	out.Path = strings.Join(out.To, ", ")
	return out, nil
}

func (m *Mail) texts(f *Facts, w *mail.Message) (err error) {
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

func addresses(templates []*Address, f *Facts, must bool) (all []mail.Address, err error) {
	for _, t := range templates {
		a, err := t.Render(f)
		switch {
		case err != nil:
			return nil, err
		case a.Address != "":
			all = append(all, a)
		case must:
			return nil, errNobody
		}
	}
	return all, nil
}
