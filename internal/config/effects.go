package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// Destination is another side that effects call: an API over HTTP, or a mail server.
type Destination struct {
	// URL is what the paths of steps are joined to, e.g. https://api.example.com/v1. Plain http is for a destination without a key, or on this machine.
	URL URL `yaml:"url,omitempty"`
	// SMTP is set instead of url where the destination is a mail server.
	SMTP SMTP `yaml:"smtp,omitempty"`
	// Key is the credential. Leave the section out where none is needed.
	Key APIKey `yaml:"key,omitempty"`
	// Header is the header that carries the key: its name and value, with {key}, or {key_base64} for 'Authorization: Basic {key_base64}' and a key of the form user:password.
	Header string `yaml:"header,omitempty" shown:"Authorization: Bearer {key}"`
	// SigningSecret signs each call as Standard Webhooks say (webhook-id, webhook-timestamp, webhook-signature), so that the other side can prove who called: whsec_ and 24 to 64 random bytes as base64,
	// e.g. what `echo whsec_$(openssl rand -base64 32)` prints. The id is the step's key, the same at each attempt.
	SigningSecret APIKey `yaml:"signing_secret,omitempty"`
	// Headers are further ones that each call has. They are shown, so put no secret here.
	Headers map[string]string `yaml:"headers,omitempty"`
	// IdempotencyHeader is the header that tells the other side a step by its key, so that it does it once; none where it knows no such header.
	IdempotencyHeader string `yaml:"idempotency_header,omitempty" default:"Idempotency-Key"`
	// KeysKept is for how long the other side knows a step by its key, as Stripe does for a day. A step of which nobody knows whether it was done is not sent again later than that after it was sent first: a
	// person says what happened. Leave it alone unless the other side says otherwise; where it never forgets, write 87600h.
	KeysKept time.Duration `yaml:"keys_kept,omitempty" default:"24h" validate:"gte=60000000000"`
	// Allow are addresses or networks that may be called though they are private, loopback or link-local, e.g. 127.0.0.1 or 10.0.0.0/8. All others of these
	// are refused, whatever name leads there.
	Allow []string `yaml:"allow,omitempty" validate:"dive,network"`
	// Concurrency is the most calls at once of one process.
	Concurrency int `yaml:"concurrency,omitempty" default:"8" validate:"gte=1,lte=1000"`
	// Rate is the most calls a second of one process; leave unset for no bound.
	Rate int `yaml:"rate,omitempty" shown:"no bound" validate:"omitempty,gte=1,lte=100000"`
	// Timeout bounds one call, up to the end of its answer. A mail server may look a message over before it answers: what it takes longer for is in doubt.
	Timeout time.Duration `yaml:"timeout,omitempty" shown:"30s; 2m for a mail server" validate:"gte=10000000,lte=600000000000"`
	// MaxAnswerBytes is how much of an answer is read; what is longer leaves the step in doubt where something is to be captured.
	MaxAnswerBytes Bytes `yaml:"max_answer_bytes,omitempty" default:"1MiB" validate:"gte=1024,lte=67108864"`
}

// Effect is a rule: what follows, once, when an object changes, or when a time of its schedule has come.
type Effect struct {
	// Source is whose objects it is about.
	Source string `yaml:"source" validate:"required"`
	// Type is the type of the objects, as the mirror names it.
	Type string `yaml:"type" validate:"required"`
	// When is the condition, an expression over old and new (the object's state before and after, old is null for a new one), object (source, account, type, id, deleted), event
	// (id, key, type, origin, occurred_at, received_at) and changed("path"), e.g. new.status == "paid" && changed("status"). Leave unset for each change.
	When string `yaml:"when,omitempty"`
	// Each is what the rule is asked about: change (each change of an object from one certain state to the next), or event (each event about an object once it was applied, stale ones and such that change nothing too; it knows new, as the event alone tells it,
	// object and event, and its key has {{ event.id }} in it (or {{ event.key }})).
	Each string `yaml:"each,omitempty" default:"change" validate:"oneof=change event"`
	// Schedule has the rule asked about each object of the type at times of its own, and not about changes.
	Schedule EffectSchedule `yaml:"schedule,omitempty"`
	// Key names the intent, e.g. "email:receipt:{{ new.id }}": what has one key follows once, whatever is retried, replayed or delivered again. One that is to follow each event has {{ event.id }} in it, and one of each window {{ window.end }}.
	Key string `yaml:"key" validate:"required"`
	// RuleVersion is raised by whoever wants what has followed already to follow again, on purpose.
	RuleVersion int `yaml:"rule_version,omitempty" default:"1" validate:"gte=1"`
	// Approval is when a person has to agree first: none, required, or required_on_replay (where a run over stored events planned it).
	Approval string `yaml:"approval,omitempty" default:"none" validate:"oneof=none required required_on_replay"`
	// ApprovalExpires is how long an effect waits for its approval; after that it has expired, and nothing of it is done. Leave unset where it waits for ever.
	ApprovalExpires time.Duration `yaml:"approval_expires,omitempty" shown:"never" validate:"omitempty,gte=60000000000"`
	// Supersede lets a newer effect of the rule about the same object take the place of one of which nothing was begun.
	Supersede bool `yaml:"supersede,omitempty"`
	// Steps are the calls, one after the other.
	Steps []EffectStep `yaml:"steps" validate:"min=1,max=20,dive"`
}

// EffectStep is one call.
type EffectStep struct {
	// Name names the step, for later ones and for people.
	Name string `yaml:"name" validate:"required,step_name"`
	// To is the destination.
	To string `yaml:"to" validate:"required"`
	// Method is HTTP's.
	Method string `yaml:"method,omitempty" default:"POST" validate:"oneof=GET POST PUT PATCH DELETE"`
	// Path is joined to the destination's URL; a step that forwards may leave it out, and one that sends a mail has none. Like headers and body it is a template: {{ expression }} stands for a value, of old, new, object, event, of steps.NAME.CAPTURE for what an earlier step
	// captured, and of step_key, by which the other side knows the step.
	Path string `yaml:"path,omitempty"`
	// Mail is what is sent where the destination is a mail server. A lost answer may have been a yes, and a mail server cannot be asked: so the step is as one that is once.
	Mail EffectMail `yaml:"mail,omitempty"`
	// Headers of the call.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Forward makes the change itself the body, so that a service in any language can act on it: {"type": "TYPE.changed", "timestamp", "data": {"old", "new", "object", "event"}}. Give the
	// destination a signing_secret.
	Forward bool `yaml:"forward,omitempty"`
	// JSON is the body as a structure whose texts are templates; a text that is one expression alone keeps its type: amount: "{{ new.total }}".
	JSON any `yaml:"json,omitempty"`
	// Form is the body as a form's fields.
	Form map[string]string `yaml:"form,omitempty"`
	// Text is the body as a text.
	Text string `yaml:"text,omitempty"`
	// Success are the statuses that mean that it is done; leave unset for 200 to 299.
	Success []int `yaml:"success,omitempty" shown:"200 to 299" validate:"dive,gte=100,lte=599"`
	// Capture are dotted paths into the answer's JSON, by the name that later steps and the ledger know them by, e.g. id: data.id.
	Capture map[string]string `yaml:"capture,omitempty"`
	// Check asks the other side whether the step was done, where an answer was lost. What was not done is sent again, unless the step is once: then a person decides.
	Check EffectCheck `yaml:"check,omitempty"`
	// Compensate undoes the step, where a person asks for that.
	Compensate EffectCall `yaml:"compensate,omitempty"`
	// Once says that the other side would do it again if it were sent again: so it never is by itself where it may have been done. Where an answer was lost, a check may say that it was done; else
	// a person must say what happened. Without a check that needs an approval of the rule, or person_resolves. Such a step goes last.
	Once bool `yaml:"once,omitempty"`
	// PersonResolves says that it is known of a step that is once and has no check: a person resolves each lost answer.
	PersonResolves bool `yaml:"person_resolves,omitempty"`
	// Timeout bounds one call; leave unset for the destination's.
	Timeout time.Duration `yaml:"timeout,omitempty" shown:"the destination's" validate:"omitempty,gte=10000000,lte=600000000000"`
	// Retry is when a step that came to nothing is tried again.
	Retry EffectRetry `yaml:"retry,omitempty"`
}

// EffectCall is a call beside a step's own.
type EffectCall struct {
	// Method is HTTP's.
	Method string `yaml:"method,omitempty" shown:"POST" validate:"omitempty,oneof=GET POST PUT PATCH DELETE"`
	// Path is joined to the destination's URL; a template.
	Path string `yaml:"path,omitempty"`
	// JSON is the body as a structure whose texts are templates.
	JSON any `yaml:"json,omitempty"`
	// Form is the body as a form's fields.
	Form map[string]string `yaml:"form,omitempty"`
}

// EffectCheck asks whether a step was done.
type EffectCheck struct {
	// To is the destination that is asked; leave unset for the step's. What a mail server was sent another side may know, e.g. the API of the mail's provider, by steps.NAME.message_id.
	To string `yaml:"to,omitempty" shown:"the step's"`
	// Path is joined to the destination's URL and asked for with GET; a template.
	Path string `yaml:"path,omitempty"`
	// Done is an expression over answer.status and answer.body that holds where the step was done, e.g. answer.status == 200 && len(answer.body.data) > 0. A yes is believed of a whole answer of 2xx, a no also of 404 and 410; after any other it is asked again.
	Done string `yaml:"done,omitempty"`
	// Found is the path within the answer below which the step's captures are read, e.g. data.0. Leave unset for the answer itself.
	Found string `yaml:"found,omitempty"`
	// Settles is how long after the end of an attempt the other side is asked at the earliest. Make it longer than the other side may take to do the step, and to show it, after the caller has left: what it does not know by then is sent again. By itself it is twice the step's timeout, and a minute at least. However short the step's retry.age is, and however few its attempts, of each lost answer the other side is asked once at least.
	Settles time.Duration `yaml:"settles,omitempty" shown:"twice the timeout, at least 1m" validate:"omitempty,gte=1000000,lte=86400000000000"`
}

// EffectRetry is when a step that came to nothing is tried again: after first, and after factor times as long each time, up to longest, a fifth more or less. Where the
// other side says when (Retry-After), not before. The defaults are waits of 2 s, 4 s, 8 s, 16 s, 32 s, 64 s, 128 s, 256 s, 512 s and ten of 10 min: 20 attempts within 1 h 57 min.
type EffectRetry struct {
	// First is the wait before the second attempt.
	First time.Duration `yaml:"first,omitempty" default:"2s" validate:"gte=1000000"`
	// Factor is by how much each wait is longer than the one before.
	Factor float64 `yaml:"factor,omitempty" shown:"2" validate:"omitempty,gte=1,lte=100"`
	// Longest is the longest wait.
	Longest time.Duration `yaml:"longest,omitempty" default:"10m" validate:"gte=1000000"`
	// Attempts is the most there are; then a person must see to it.
	Attempts int `yaml:"attempts,omitempty" default:"20" validate:"gte=1,lte=1000"`
	// Age is for how long the step is tried, from its first attempt, or the first after a person had it go on, before a person must see to it.
	Age time.Duration `yaml:"age,omitempty" default:"24h" validate:"gte=1000000000"`
	// On are statuses of 4xx after which the step is tried again, since they pass, e.g. [404, 423]: by itself one of 4xx means that the step was not done and will not be, and a person must see to it. 408, 409, 425, 429 and those of 5xx are tried again anyway.
	On []int `yaml:"on,omitempty" validate:"omitempty,dive,gte=400,lte=499"`
}

// Rules are the rules of effects, compiled, by name. It is for a Config from Load, LoadDev or Parse, which have checked them.
func (c *Config) Rules() (all []*rules.Rule) {
	for _, name := range sortedKeys(c.Effects) {
		rule, _ := c.Effects[name].compile("effects."+name, name, c)
		all = append(all, rule)
	}
	return all
}

// Rule is a rule of effects by its name, compiled; nil: there is none of that name.
func (c *Config) Rule(name string) (*rules.Rule, error) {
	if c.Effects[name] == nil {
		return nil, nil
	}
	return c.Effects[name].compile("effects."+name, name, c)
}

// checkEffects tells all that is wrong with destinations and rules.
func checkEffects(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Destinations) {
		bad = append(bad, c.Destinations[name].check("destinations."+name))
	}
	for _, name := range sortedKeys(c.Effects) {
		_, err := c.Effects[name].compile("effects."+name, name, c)
		bad = append(bad, err)
	}
	return errors.Join(bad...)
}

func (d *Destination) check(path string) error {
	switch {
	case !isZero(d.SMTP):
		return d.checkMail(path)
	case d.URL == "":
		return &Problem{Path: path + ".url", Msg: "is not set: write the address that is called, or smtp for a mail server"}
	}
	bad := []error{d.checkURL(path + ".url")}
	if _, err := signingKey(d.SigningSecret.key); err != nil {
		bad = append(bad, &Problem{Path: path + ".signing_secret", Msg: err.Error()})
	}
	header, value, ok := strings.Cut(cmp.Or(d.Header, "Authorization: Bearer {key}"), ":")
	if header = http.CanonicalHeaderKey(strings.TrimSpace(header)); !ok || !headerName(header) || slices.Contains(ours, header) || !strings.Contains(value, "{key}") && !strings.Contains(value, "{key_base64}") {
		bad = append(bad, &Problem{Path: path + ".header", Msg: fmt.Sprintf("%q is no header with the key: write e.g. 'Authorization: Bearer {key}' or 'X-Api-Key: {key}'", d.Header)})
	}
	for _, name := range sortedKeys(d.Headers) {
		bad = append(bad, checkCallHeader(path+".headers."+name, name, d.Headers[name]))
	}
	if d.IdempotencyHeader != "none" && !headerName(d.IdempotencyHeader) {
		bad = append(bad, &Problem{Path: path + ".idempotency_header", Msg: fmt.Sprintf("%q is no header's name: write one, or none", d.IdempotencyHeader)})
	}
	return errors.Join(bad...)
}

// checkURL wants an address that calls, and a key if there is one, may be sent to.
func (d *Destination) checkURL(path string) error {
	u, err := url.Parse(string(d.URL))
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return &Problem{Path: path, Msg: fmt.Sprintf("%q is no address to call: write e.g. https://api.example.com", RedactURL(string(d.URL)))}
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return &Problem{Path: path, Msg: "has a user, a query or a # part: leave them out; a credential has a setting of its own, and a query belongs to a step's path"}
	case u.Scheme == "http" && !d.Key.unset() && !onThisMachine(u.Hostname()):
		return &Problem{Path: path, Msg: fmt.Sprintf("%q is plain http, over which everyone on the way reads the key: write https", RedactURL(string(d.URL)))}
	}
	return nil
}

// checkCallHeader wants a header that calls may have.
func checkCallHeader(path, name, value string) error {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !headerName(canonical) || slices.Contains(ours, canonical):
		return &Problem{Path: path, Msg: "is no header that can be set here: leave it out"}
	case credential(canonical):
		return &Problem{Path: path, Msg: "a credential is kept by the destination: set its key, and say in its header how it is sent"}
	case strings.ContainsAny(value, "\r\n\x00"):
		return &Problem{Path: path, Msg: "holds a line end: leave it out"}
	}
	return nil
}

// ruleBuilder compiles a rule and gathers what is wrong with it.
type ruleBuilder struct {
	bad []error
	// knows is what expressions of the rule may name, where that is not what those about changes may.
	knows string
}

func (b *ruleBuilder) fail(path, msg string, args ...any) {
	b.bad = append(b.bad, &Problem{Path: path, Msg: fmt.Sprintf(msg, args...)})
}

func (b *ruleBuilder) text(path, text string, scope rules.Scope) *rules.Text {
	t, err := rules.CompileText(text, scope)
	if err != nil {
		b.fail(path, "%v", b.told(err))
	}
	return t
}

// compile checks a rule. The rule is whole only where there is no error.
func (e *Effect) compile(path, name string, c *Config) (*rules.Rule, error) {
	b := &ruleBuilder{}
	scope := b.scope(e)
	r := &rules.Rule{Name: name, Source: e.Source, Type: e.Type, Version: e.RuleVersion, Approval: rules.Approval(e.Approval), ApprovalExpires: e.ApprovalExpires, Supersede: e.Supersede, Key: b.text(path+".key", e.Key, scope)}
	if c.Sources[e.Source] == nil {
		b.fail(path+".source", "source %q is not configured", e.Source)
	}
	if r.Key != nil && r.Key.Constant() {
		b.fail(path+".key", "names nothing of the object or the event, so that there would be one effect for ever: write e.g. \"%s:{{ object.id }}\"", name)
	}
	b.asked(path, name, e, r)
	if e.ApprovalExpires > 0 && r.Approval == rules.ApproveNone {
		b.fail(path+".approval_expires", "nothing waits for an approval: set approval, or leave this out")
	}
	if e.When != "" {
		var err error
		if r.When, err = rules.Compile(e.When, scope, true); err != nil {
			b.fail(path+".when", "%v", b.told(err))
		}
	}
	scope.Steps = map[string][]string{}
	for i := range e.Steps {
		s := &e.Steps[i]
		at := fmt.Sprintf("%s.steps.%d", path, i)
		if _, twice := scope.Steps[s.Name]; twice {
			b.fail(at+".name", "there is a step %q before: give each its own name", s.Name)
		}
		r.Steps = append(r.Steps, b.step(at, s, scope, c))
		if !s.repeatable() && s.Check.Path == "" && !s.PersonResolves && e.Approval != string(rules.ApproveRequired) {
			b.fail(at+s.onceBy(), "what must not be sent again and cannot be asked for leaves a person to resolve each lost answer: give the step a check, or the rule approval: required, or say person_resolves: true")
		}
		scope.Steps[s.Name] = s.captures()
	}
	return r, errors.Join(b.bad...)
}

func (b *ruleBuilder) step(at string, s *EffectStep, scope rules.Scope, c *Config) rules.Step {
	to := c.Destinations[s.To]
	if to == nil {
		b.fail(at+".to", "destination %q is not configured", s.To)
		to = &Destination{}
	}
	header := to.IdempotencyHeader
	if header == "none" {
		header = ""
	}
	out := rules.Step{Name: s.Name, Destination: s.To, Success: s.Success, Capture: s.Capture, Once: !s.repeatable(), Timeout: cmp.Or(s.Timeout, to.Timeout),
		Retry: rules.Retry{First: s.Retry.First, Longest: max(s.Retry.First, s.Retry.Longest), Factor: cmp.Or(s.Retry.Factor, 2), Attempts: s.Retry.Attempts, Age: s.Retry.Age, On: s.Retry.On}}
	if s.Check != (EffectCheck{}) {
		out.Check = b.check(at+".check", s, s.asked(scope), c, out.Timeout)
	}
	if !isZero(s.Mail) {
		out.Do = b.mail(at, s, to, scope)
		return out
	}
	if !isZero(to.SMTP) {
		b.fail(at+".to", "destination %s is a mail server: write mail, with to, subject and text", s.To)
	}
	out.Do = b.call(at, EffectCall{s.Method, s.Path, s.JSON, s.Form}, s.Headers, s.Text, scope)
	if s.Path != "" || !s.Forward { // a change may go to the destination's very URL
		b.path(at, s.Path)
	}
	if header == "" && !s.Once && s.Check.Path == "" && !slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodDelete}, s.Method) {
		b.key(at, s, scope)
	}
	out.Do.KeyHeader, out.Do.Forward = header, s.Forward
	if s.Forward && (s.JSON != nil || s.Form != nil || s.Text != "" || out.Do.Method == http.MethodGet || out.Do.Method == http.MethodDelete) {
		b.fail(at+".forward", "the change is the body: leave json, form and text out, and send it with POST, PUT or PATCH")
	}
	for _, name := range sortedKeys(s.Capture) {
		if !captureName.MatchString(name) {
			b.fail(at+".capture."+name, "a captured value is named with a to z, 0 to 9 and _, beginning with a letter")
		}
	}
	if !isZero(s.Compensate) {
		after := rules.Scope{Change: scope.Change, Event: scope.Event, Window: scope.Window, Steps: map[string][]string{s.Name: sortedKeys(s.Capture)}}
		for name, captures := range scope.Steps {
			after.Steps[name] = captures
		}
		b.path(at+".compensate", s.Compensate.Path)
		undo := b.call(at+".compensate", s.Compensate, nil, "", after)
		undo.KeyHeader = header
		out.Undo = &undo
	}
	return out
}

// path wants one that can be joined to a destination's URL.
func (b *ruleBuilder) path(at, path string) {
	if !strings.HasPrefix(path, "/") {
		b.fail(at+".path", "%q: begin with /; it is joined to the destination's url", path)
	}
}

func (b *ruleBuilder) check(at string, s *EffectStep, scope rules.Scope, c *Config, timeout time.Duration) *rules.Check {
	k, asked := s.Check, cmp.Or(s.Check.To, s.To)
	switch d := c.Destinations[asked]; {
	case d == nil && k.To != "":
		b.fail(at+".to", "destination %q is not configured", k.To)
	case d != nil && !isZero(d.SMTP):
		b.fail(at+".to", "a mail server cannot be asked: name another destination, e.g. the API of the mail's provider")
	}
	b.path(at, k.Path)
	out := &rules.Check{Request: b.call(at, EffectCall{Method: http.MethodGet, Path: k.Path}, nil, "", scope), Destination: asked, Found: k.Found, Again: !s.Once, Settles: cmp.Or(k.Settles, max(2*timeout, time.Minute))}
	var err error
	if out.Done, err = rules.Compile(k.Done, rules.Scope{Change: scope.Change, Event: scope.Event, Window: scope.Window, Answer: true}, true); err != nil {
		b.fail(at+".done", "%v", b.told(err))
	}
	return out
}

// call compiles a request.
func (b *ruleBuilder) call(at string, of EffectCall, headers map[string]string, text string, scope rules.Scope) rules.Request {
	out := rules.Request{Method: cmp.Or(of.Method, http.MethodPost), Path: b.text(at+".path", of.Path, scope), Headers: map[string]*rules.Text{}}
	for _, name := range sortedKeys(headers) {
		if err := checkCallHeader(at+".headers."+name, name, headers[name]); err != nil {
			b.bad = append(b.bad, err)
		}
		out.Headers[http.CanonicalHeaderKey(name)] = b.text(at+".headers."+name, headers[name], scope)
	}
	bodies := 0
	if of.JSON != nil {
		bodies++
		tree, err := rules.CompileTree(of.JSON, scope)
		if inner := (*rules.At)(nil); errors.As(err, &inner) {
			b.fail(strings.TrimSuffix(at+".json."+inner.Path, "."), "%v", b.told(inner.Err))
		} else if err != nil {
			b.fail(at+".json", "%v", err)
		}
		out.JSON = tree
	}
	if of.Form != nil {
		bodies++
		out.Form = map[string]*rules.Text{}
		for _, name := range sortedKeys(of.Form) {
			out.Form[name] = b.text(at+".form."+name, of.Form[name], scope)
		}
	}
	if text != "" {
		bodies++
		out.Text = b.text(at+".text", text, scope)
	}
	if bodies > 1 {
		b.fail(at, "has several bodies: write one of json, form and text")
	}
	if bodies > 0 && (out.Method == http.MethodGet || out.Method == http.MethodDelete) {
		b.fail(at, "%s has no body: leave json, form and text out", out.Method)
	}
	return out
}
