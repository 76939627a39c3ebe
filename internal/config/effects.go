package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/settings"
)

// Effect is a rule. It says what Postern does, once, when an object changes or at a planned time.
type Effect struct {
	// Source is the source of the objects.
	Source string `yaml:"source" validate:"required"`
	// Type is the type of the objects, as the mirror names it.
	Type string `yaml:"type" validate:"required"`
	// When is the condition, an expression. It may use old and new (the object's state before and
	// after; old is null for a new object), object (source, account, type, id, deleted), event (id,
	// key, type, origin, occurred_at, received_at) and changed("path"). Example: new.status ==
	// "paid" && changed("status"). Leave it unset to apply the rule to every change. An expression
	// has at most 500 parts. Its evaluation fails if it creates more than 100,000 elements, or
	// needs too much work for the size of the object.
	When string `yaml:"when,omitempty"`
	// Trigger says when Postern evaluates the rule. change evaluates it for each change from one
	// certain state of an object to the next. event evaluates it for each applied event about an
	// object, including stale events and events without a change. With event, the rule may use new
	// (as the event contains it), object and event. Its key must contain {{ event.id }} or
	// {{ event.key }}.
	Trigger string `yaml:"each,omitempty" default:"change" validate:"oneof=change event"`
	// Schedule makes Postern evaluate the rule at planned times, for each object of the type,
	// instead of at changes.
	Schedule EffectSchedule `yaml:"schedule,omitempty"`
	// Summary adds a summary of other objects to a rule on a schedule, e.g. of the invoices of each
	// customer: those that changed in the time window and contain the object's id. Expressions may
	// use summary.count, summary.sums.NAME, summary.objects (a list) and summary.truncated. A
	// deleted or ambiguous object does not count. A change after the window's end, or one that is
	// committed late, is part of the next window.
	Summary EffectSummary `yaml:"summary,omitempty"`
	// Key identifies the planned effect, e.g. "email:receipt:{{ new.id }}". Postern executes an
	// effect with the same key once, whatever is retried, replayed or delivered again. For one
	// effect per event, include {{ event.id }}. For one per window, include {{ window.end }}.
	Key string `yaml:"key" validate:"required"`
	// RuleVersion is part of an effect's identity. Raise it to allow effects that were already
	// executed to be executed again.
	RuleVersion int `yaml:"rule_version,omitempty" default:"1" validate:"gte=1"`
	// Approval says whether an operator must approve effects first: none, required, or
	// required_on_replay (only for effects that a replay planned).
	Approval string `yaml:"approval,omitempty" default:"none" validate:"oneof=none required required_on_replay"`
	// ApprovalExpires is how long an effect waits for approval. After that, it expires and no step
	// is executed. Leave it unset to wait without limit.
	ApprovalExpires time.Duration `yaml:"approval_expires,omitempty" unset:"never" validate:"omitempty,gte=60000000000"`
	// Supersede: true lets a newer effect replace an older one that has not started. Both must be
	// of this rule and about the same object.
	Supersede bool `yaml:"supersede,omitempty"`
	// Steps are the calls. Postern executes them in order.
	Steps []EffectStep `yaml:"steps" validate:"min=1,max=20,dive"`
}

// EffectStep is one call.
type EffectStep struct {
	// Name identifies the step in later steps and in the ledger.
	Name string `yaml:"name" validate:"required,step_name"`
	// When is the condition of the step, an expression over the names that the rule's when may use
	// and over values that earlier steps captured (steps.NAME.CAPTURE). Its limits are those of the
	// rule's when. If it is false, Postern skips the step and continues with the next one. A value
	// of a skipped step is null. Postern evaluates the condition once, immediately before the step,
	// and stores the result. Example: steps.find.id == nil. Leave it unset to always execute the
	// step.
	When string `yaml:"when,omitempty"`
	// To is the destination.
	To string `yaml:"to" validate:"required"`
	// Method is the HTTP method.
	Method string `yaml:"method,omitempty" default:"POST" validate:"oneof=GET POST PUT PATCH DELETE"`
	// Path is joined to the destination's URL. A step with forward may leave it out, and a step
	// with mail has none. Path, headers and body are templates. Postern replaces {{ expression }}
	// by a value. It may be a value of old, new, object or event, a value that an earlier step
	// captured (steps.NAME.CAPTURE), or the step's idempotency key (step_key).
	Path string `yaml:"path,omitempty"`
	// Mail is the mail to send, if the destination is a mail server. If the response is lost, the
	// server may have accepted the mail, and Postern cannot ask the server. The step therefore
	// behaves as with at_most_once.
	Mail EffectMail `yaml:"mail,omitempty"`
	// Headers are the headers of the call. Put a credential into the destination instead. Console
	// and API show the values of Accept, Accept-Language, Content-Type and Idempotency-Key only.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Forward: true sends the change as the body: {"type": "TYPE.changed", "timestamp", "data":
	// {"old", "new", "object", "event"}}. A service in any language can process it. Give the
	// destination a signing_secret.
	Forward bool `yaml:"forward,omitempty"`
	// JSON is the body as a structure with templates. If a text is exactly one expression, the
	// value keeps its type: amount: "{{ new.total }}".
	JSON any `yaml:"json,omitempty"`
	// Form is the body as form fields.
	Form map[string]string `yaml:"form,omitempty"`
	// Text is the body as text.
	Text string `yaml:"text,omitempty"`
	// Success are the statuses that mean success. Leave it unset for 200 to 299.
	Success []int `yaml:"success,omitempty" unset:"200 to 299" validate:"dive,gte=100,lte=599"`
	// Capture maps names to dotted paths in the response's JSON, e.g. id: data.id. Later steps and
	// the ledger use these names.
	Capture map[string]string `yaml:"capture,omitempty"`
	// NullIfMissing: true captures null for a value that the response does not have, as in the
	// empty result of a search. Write success: [200, 404] too if the destination responds 404 where
	// there is none: each value of a response with status 404 or 410 is then null. Without this
	// setting, an operator must resolve a missing value. A response that is incomplete or not JSON
	// is never read as null.
	NullIfMissing bool `yaml:"null_if_missing,omitempty"`
	// Check asks the destination whether it executed the step, if a response was lost. Postern
	// sends a step that was not executed again. If the step has at_most_once, an operator decides.
	Check EffectCheck `yaml:"check,omitempty"`
	// Compensate undoes the step if an operator requests it.
	Compensate EffectCall `yaml:"compensate,omitempty"`
	// AtMostOnce: true says that the destination would execute the step twice if it received the
	// step twice. Postern never sends such a step again automatically if the destination may have
	// executed it. After a lost response, a check may confirm that the step was executed. Otherwise
	// an operator must resolve it. Without a check, the rule needs approval: required, or the step
	// needs operator_resolves. Make such a step the last one.
	AtMostOnce bool `yaml:"at_most_once,omitempty"`
	// OperatorResolves: true allows a step with at_most_once and without a check. An operator then
	// resolves each lost response.
	OperatorResolves bool `yaml:"operator_resolves,omitempty"`
	// Timeout limits one call. Leave it unset for the destination's timeout.
	Timeout time.Duration `yaml:"timeout,omitempty" unset:"the destination's" validate:"omitempty,gte=10000000,lte=600000000000"`
	// Retry says when a failed step is retried.
	Retry EffectRetry `yaml:"retry,omitempty"`
}

// EffectCall is a call in addition to a step's own.
type EffectCall struct {
	// Method is the HTTP method.
	Method string `yaml:"method,omitempty" unset:"POST" validate:"omitempty,oneof=GET POST PUT PATCH DELETE"`
	// Path is a template. It is joined to the destination's URL.
	Path string `yaml:"path,omitempty"`
	// JSON is the body as a structure with templates.
	JSON any `yaml:"json,omitempty"`
	// Form is the body as form fields.
	Form map[string]string `yaml:"form,omitempty"`
}

// EffectCheck asks whether a step was executed.
type EffectCheck struct {
	// To is the destination to ask. Leave it unset for the step's destination. For a mail, name
	// another service that knows about the mail, e.g. the API of the mail provider, and use
	// steps.NAME.message_id.
	To string `yaml:"to,omitempty" unset:"the step's"`
	// When: before makes Postern ask also before the first attempt. If the response says that the
	// step was executed, for example by another system, Postern does not send the step. It captures
	// the values from this response. It also never undoes such a step.
	When string `yaml:"when,omitempty" unset:"only after a lost response" validate:"omitempty,oneof=before"`
	// Path is a template. Postern joins it to the destination's URL and requests it with GET.
	Path string `yaml:"path,omitempty"`
	// Done is an expression over answer.status and answer.body. It is true if the step was
	// executed, e.g. answer.status == 200 && len(answer.body.data) > 0. Postern accepts the result
	// true only from a complete 2xx response. It accepts the result false also from status 404 and
	// 410. After any other response, it asks again.
	Done string `yaml:"done,omitempty"`
	// CapturePath is the path in the response below which Postern reads the step's captures, e.g.
	// data.0. Leave it unset to read them from the response itself.
	CapturePath string `yaml:"found,omitempty"`
	// Delay is how long Postern waits after the end of an attempt before it asks. The connection
	// may end before the destination executes the step and shows the result. Make the delay longer
	// than that can take, because Postern sends a step again that the destination does not know by
	// then. The default is twice the step's timeout, at least one minute. Postern checks each lost
	// response at least once, even if retry.age or retry.attempts is small.
	Delay time.Duration `yaml:"delay,omitempty" unset:"twice the timeout, at least 1m" validate:"omitempty,gte=1000000,lte=86400000000000"`
}

// EffectRetry says when a failed step is retried. The first wait is first_wait. Each further wait
// is factor times as long, up to max_wait, and varies by a fifth. If the response has Retry-After,
// Postern waits at least that long. The defaults are waits of 2 s, 4 s, 8 s, 16 s, 32 s, 64 s, 128
// s, 256 s, 512 s and ten of 10 min: 20 attempts within 1 h 57 min.
type EffectRetry struct {
	// FirstWait is the wait before the second attempt.
	FirstWait time.Duration `yaml:"first_wait,omitempty" default:"2s" validate:"gte=1000000"`
	// Factor multiplies each wait to get the next one.
	Factor float64 `yaml:"factor,omitempty" unset:"2" validate:"omitempty,gte=1,lte=100"`
	// MaxWait is the longest wait.
	MaxWait time.Duration `yaml:"max_wait,omitempty" default:"10m" validate:"gte=1000000"`
	// MaxAttempts is the maximum number of attempts. After that, an operator must review the step.
	MaxAttempts int `yaml:"attempts,omitempty" default:"20" validate:"gte=1,lte=1000"`
	// MaxAge is how long Postern retries the step before an operator must review it. It counts from
	// the first attempt, or from the first one after an operator retried the step.
	MaxAge time.Duration `yaml:"age,omitempty" default:"24h" validate:"gte=1000000000"`
	// Statuses are 4xx statuses that are temporary, e.g. [404, 423]. Postern retries the step after
	// them. It also retries after 408, 409, 425, 429 and 5xx, without this setting. Any other 4xx
	// status means that the destination did not execute the step and never will, so an operator
	// must review it.
	Statuses []int `yaml:"on,omitempty" validate:"omitempty,dive,gte=400,lte=499"`
}

// Rules returns all compiled rules, by name. Use it for a Config from Load, LoadDev or Parse, which
// have checked them.
func (c *Config) Rules() (all []*rules.Rule) {
	for _, name := range sortedKeys(c.Effects) {
		rule, _ := c.Effects[name].compile("effects."+name, name, c)
		all = append(all, rule)
	}
	for _, name := range sortedKeys(c.Forward) {
		all = append(all, c.Forward[name].rule(name, c))
	}
	return all
}

// Rule returns the compiled rule of the section effects with a name, or nil where none exists.
func (c *Config) Rule(name string) (*rules.Rule, error) {
	if c.Effects[name] == nil {
		return nil, nil
	}
	return c.Effects[name].compile("effects."+name, name, c)
}

// checkEffects returns all problems of destinations and rules.
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

// ruleBuilder compiles a rule and collects its problems.
type ruleBuilder struct {
	errs []error
	// scopeNote lists the names that expressions may use.
	scopeNote string
}

func (b *ruleBuilder) fail(path, msg string, args ...any) {
	b.errs = append(b.errs, &settings.Problem{Path: path, Msg: fmt.Sprintf(msg, args...)})
}

func (b *ruleBuilder) text(path, text string, scope rules.Scope) *rules.Text {
	t, err := rules.CompileText(text, scope)
	if err != nil {
		b.fail(path, "%v", b.explainError(err))
	}
	return t
}

// IsShownHeader reports whether readers see the value of a header of a call. Other values may be
// secret.
func IsShownHeader(name string) bool {
	return slices.Contains([]string{"Accept", "Accept-Language", "Content-Type", "Idempotency-Key"},
		http.CanonicalHeaderKey(name))
}

// withoutHeaders returns the rule without the values of headers that may be secret.
func (e *Effect) withoutHeaders() *Effect {
	shown := *e
	shown.Steps = slices.Clone(e.Steps)
	for i := range shown.Steps {
		s := &shown.Steps[i]
		s.Headers = maps.Clone(s.Headers)
		for name := range s.Headers {
			if !IsShownHeader(name) {
				s.Headers[name] = "(not shown)"
			}
		}
	}
	return &shown
}

// compile checks a rule. The rule is complete only if the error is nil.
func (e *Effect) compile(path, name string, c *Config) (*rules.Rule, error) {
	b := &ruleBuilder{}
	scope := b.scope(path, e)
	r := &rules.Rule{Name: name, Source: e.Source, Type: e.Type, Version: e.RuleVersion,
		Approval: rules.Approval(e.Approval), ApprovalExpires: e.ApprovalExpires, Supersede: e.Supersede,
		Key: b.text(path+".key", e.Key, scope)}
	if c.Sources[e.Source] == nil {
		b.fail(path+".source", "source %q is not configured%s", e.Source,
			didYouMean(e.Source, sortedKeys(c.Sources), ""))
	}
	if e.Key != "" && r.Key != nil && r.Key.IsConstant() {
		b.fail(path+".key", "does not depend on the object or the event, so the rule would have a single effect: "+
			"write e.g. \"%s:{{ object.id }}\"", name)
	}
	b.checkTrigger(path, name, e, r)
	r.Summary = scope.Summary
	if e.ApprovalExpires > 0 && r.Approval == rules.ApproveNone {
		b.fail(path+".approval_expires", "no effect waits for an approval: set approval, or leave this out")
	}
	if e.When != "" {
		var err error
		if r.When, err = rules.Compile(e.When, scope, true); err != nil {
			b.fail(path+".when", "%v", b.explainError(err))
		}
	}
	scope.Steps = map[string][]string{}
	for i := range e.Steps {
		s := &e.Steps[i]
		at := fmt.Sprintf("%s.steps.%d", path, i)
		if _, changedTwice := scope.Steps[s.Name]; changedTwice {
			b.fail(at+".name", "an earlier step is named %q too: give each step its own name", s.Name)
		}
		r.Steps = append(r.Steps, b.step(at, s, scope, c))
		if !s.isRepeatable() && s.Check.Path == "" && !s.OperatorResolves &&
			e.Approval != string(rules.ApproveRequired) {
			b.fail(at+s.atMostOnceSetting(), "this step must not be sent twice and has no check, so an operator must "+
				"resolve "+
				"each lost response: add a check, set approval: required in the rule, or set operator_resolves: true")
		}
		scope.Steps[s.Name] = s.captureNames()
	}
	text, err := yaml.Marshal(e.withoutHeaders())
	r.Configuration = string(text)
	return r, errors.Join(append(b.errs, err)...)
}

func (b *ruleBuilder) step(at string, s *EffectStep, scope rules.Scope, c *Config) rules.Step {
	to := c.Destinations[s.To]
	if to == nil {
		b.fail(at+".to", "destination %q is not configured%s", s.To, didYouMean(s.To, sortedKeys(c.Destinations), ""))
		to = &Destination{}
	}
	header := to.IdempotencyHeader
	if header == "none" {
		header = ""
	}
	out := rules.Step{Name: s.Name, Destination: s.To, Success: s.Success, Capture: s.Capture,
		When: b.stepCondition(at, s, scope), NullIfMissing: s.NullIfMissing,
		NeverRepeat: !s.isRepeatable(),
		Timeout:     cmp.Or(s.Timeout, to.Timeout),
		Retry: rules.Retry{FirstWait: s.Retry.FirstWait, MaxWait: max(s.Retry.FirstWait, s.Retry.MaxWait),
			Factor: cmp.Or(s.Retry.Factor, 2), MaxAttempts: s.Retry.MaxAttempts, MaxAge: s.Retry.MaxAge,
			OnStatuses: s.Retry.Statuses}}
	if s.Check != (EffectCheck{}) {
		out.Check = b.check(at+".check", s, s.checkScope(scope), c, out.Timeout)
	}
	if !settings.IsZero(s.Mail) {
		out.Do = b.mail(at, s, to, scope)
		return out
	}
	if !settings.IsZero(to.SMTP) {
		b.fail(at+".to", "destination %s is a mail server: write mail, with to, subject and text", s.To)
	}
	out.Do = b.call(at, EffectCall{s.Method, s.Path, s.JSON, s.Form}, s.Headers, s.Text, scope)
	if s.Path != "" || !s.Forward { // a forwarded change may go to the destination's URL itself
		b.path(at, s.Path)
	}
	if header == "" && !s.AtMostOnce && s.Check.Path == "" &&
		!slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodDelete}, s.Method) {
		b.checkStepKey(at, s, scope)
	}
	out.Do.KeyHeader, out.Do.Forward = header, s.Forward
	if s.Forward && (s.JSON != nil || s.Form != nil || s.Text != "" || out.Do.Method == http.MethodGet ||
		out.Do.Method == http.MethodDelete) {
		b.fail(at+".forward", "the change is the body: leave json, form and text out, and use POST, PUT or PATCH")
	}
	for _, name := range sortedKeys(s.Capture) {
		if !captureName.MatchString(name) {
			b.fail(at+".capture."+name, "is not a valid name for a captured value: use a to z, 0 to 9 and _, "+
				"beginning with a letter")
		}
	}
	if !settings.IsZero(s.Compensate) {
		after := scope
		after.Steps = map[string][]string{s.Name: sortedKeys(s.Capture)}
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

// path requires a path that can be joined to a destination's URL.
func (b *ruleBuilder) path(at, path string) {
	if !strings.HasPrefix(path, "/") {
		b.fail(at+".path", "%q: begin with /; it is joined to the destination's url", path)
	}
}

func (b *ruleBuilder) check(at string, s *EffectStep, scope rules.Scope, c *Config,
	timeout time.Duration) *rules.Check {
	k, destination := s.Check, cmp.Or(s.Check.To, s.To)
	switch d := c.Destinations[destination]; {
	case d == nil && k.To != "":
		b.fail(at+".to", "destination %q is not configured%s", k.To, didYouMean(k.To, sortedKeys(c.Destinations), ""))
	case d != nil && !settings.IsZero(d.SMTP):
		b.fail(at+".to", "a mail server cannot be queried: name another destination, e.g. the API of the mail provider")
	}
	b.path(at, k.Path)
	out := &rules.Check{Request: b.call(at, EffectCall{Method: http.MethodGet, Path: k.Path}, nil, "", scope),
		Destination: destination, CapturePath: k.CapturePath, Before: k.When == checkBefore,
		RepeatIfNotDone: !s.AtMostOnce,
		Delay:           cmp.Or(k.Delay, max(2*timeout, time.Minute))}
	scope.Steps, scope.Response = nil, true
	var err error
	if out.Done, err = rules.Compile(k.Done, scope, true); err != nil {
		b.fail(at+".done", "%v", b.explainError(err))
	}
	return out
}

// call compiles a request.
func (b *ruleBuilder) call(at string, of EffectCall, headers map[string]string, text string,
	scope rules.Scope) rules.Request {
	out := rules.Request{Method: cmp.Or(of.Method, http.MethodPost), Path: b.text(at+".path", of.Path, scope),
		Headers: map[string]*rules.Text{}}
	for _, name := range sortedKeys(headers) {
		c := settings.Check(at + ".headers")
		c.CallHeader(name, headers[name], destinationCredential)
		b.errs = append(b.errs, c.Err())
		out.Headers[http.CanonicalHeaderKey(name)] = b.text(at+".headers."+name, headers[name], scope)
	}
	bodies := 0
	if of.JSON != nil {
		bodies++
		tree, err := rules.CompileTree(of.JSON, scope)
		if inner := (*rules.PathError)(nil); errors.As(err, &inner) {
			b.fail(strings.TrimSuffix(at+".json."+inner.Path, "."), "%v", b.explainError(inner.Err))
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
		b.fail(at, "has several bodies: keep one of json, form and text")
	}
	if bodies > 0 && (out.Method == http.MethodGet || out.Method == http.MethodDelete) {
		b.fail(at, "%s has no body: leave json, form and text out", out.Method)
	}
	return out
}
