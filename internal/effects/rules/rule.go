package rules

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rule says which steps follow when an object changes, when an event arrives, or on a schedule. Its
// texts are compiled. It is safe for concurrent use.
type Rule struct {
	Name string
	// Source and Type select the objects, except for OnRevision.
	Source, Type string
	// Forwards selects the objects of a rule with OnRevision.
	Forwards []Selector
	// On is the trigger; empty means OnChange.
	On Trigger
	// Schedule is set for OnSchedule only.
	Schedule *Schedule
	// Summary is the summary of other objects that a rule with OnSchedule sees; nil if it has none.
	Summary *Summary
	// When is the condition; nil accepts everything.
	When *Expression
	// Key identifies the effect. One key is executed once for each version of the rule.
	Key *Text
	// Version is raised to execute effects again that exist under an earlier version.
	Version int
	// Approval says when an operator has to approve.
	Approval Approval
	// ApprovalExpires is how long an effect may wait for approval; 0 is without limit.
	ApprovalExpires time.Duration
	// Supersede makes a newer effect of the rule about the same object replace one that has no
	// started step.
	Supersede bool
	Steps     []Step
	// Configuration is the rule as YAML, with its defaults and without the values of headers that
	// may be secret.
	Configuration string
}

// Selector selects objects by source and type. The type * selects all types.
type Selector struct{ Source, Type string }

// IsForwarded reports whether the rule forwards the revisions of objects of a type.
func (r *Rule) IsForwarded(source, objectType string) bool {
	return slices.ContainsFunc(r.Forwards, func(s Selector) bool {
		return s.Source == source && (s.Type == objectType || s.Type == "*")
	})
}

// Approval says when an operator has to approve an effect before its first step.
type Approval string

// The approval policies.
const (
	ApproveNone     Approval = "none"
	ApproveRequired Approval = "required"
	// ApproveOnReplay requires approval only for effects that a run over stored events plans.
	ApproveOnReplay Approval = "required_on_replay"
)

// Step is one request to a destination.
type Step struct {
	Name, Destination string
	// When is the condition of the step; nil means that it is always executed. It is evaluated once
	// for each effect.
	When *Expression
	Do   Request
	// Success are the statuses that mean success; if empty, 200 to 299.
	Success []int
	// Capture maps the names that later steps see to paths in the JSON of the response.
	Capture map[string]string
	// NullIfMissing captures null for a value that the response does not have, and for each value
	// from a response with status 404 or 410. Otherwise an operator has to add the value.
	NullIfMissing bool
	// Check asks the destination whether the step was executed; nil if the destination cannot tell.
	Check *Check
	// Undo compensates the step; nil if that is not possible.
	Undo *Request
	// NeverRepeat forbids sending the step again while its outcome is unknown. Otherwise the
	// destination recognizes the step by its key.
	NeverRepeat bool
	Timeout     time.Duration
	Retry       Retry
}

// Request is the request that is sent. Path is appended to the destination's URL.
type Request struct {
	Method  string
	Path    *Text
	Headers map[string]*Text
	// JSON, Form and Text are the body; at most one is set. All values of a form are texts.
	JSON *Tree
	Form map[string]*Text
	Text *Text
	// Forward sends the change itself as the body.
	Forward bool
	// KeyHeader is the header that carries the step's key; empty if none does.
	KeyHeader string
	// Mail makes the request a message to a mail server; then all other fields are unset.
	Mail *Mail
}

// Check asks whether a step was executed. Done is evaluated over answer.status and answer.body. If
// it is true, the captures of the step read the body below CapturePath.
type Check struct {
	Request
	// Destination is the destination that is asked.
	Destination string
	Done        *Expression
	CapturePath string
	// Delay is how long to wait after the end of an attempt before asking, because the destination
	// may still be executing it.
	Delay time.Duration
	// Before asks also before the first attempt. If the step was executed already, it is not sent.
	Before bool
	// RepeatIfNotDone sends the step again if the destination says that it was not executed.
	// Otherwise an operator decides.
	RepeatIfNotDone bool
}

// Retry says when a failed step is retried.
type Retry struct {
	// FirstWait is the wait before the second attempt. Each further wait is Factor times as long,
	// up to MaxWait. A random part of up to a fifth spreads steps that failed together.
	FirstWait, MaxWait time.Duration
	Factor             float64
	// MaxAttempts bounds the attempts, and MaxAge their duration since the first attempt, or since
	// the first after an operator continued the effect. After that, the effect needs review.
	MaxAttempts int
	MaxAge      time.Duration
	// OnStatuses are the 4xx statuses after which the step is retried, because it was not executed
	// and may succeed later. Any other 4xx status needs review.
	OnStatuses []int
}

// Wait returns the wait after a number of attempts; spread is from 0 to 1.
func (r Retry) Wait(attempts int, spread float64) time.Duration {
	wait := float64(r.FirstWait)
	for range attempts - 1 {
		if wait *= r.Factor; wait >= float64(r.MaxWait) {
			wait = float64(r.MaxWait)
			break
		}
	}
	return time.Duration(wait * (0.8 + 0.4*spread))
}

// Succeeds reports whether a status means success.
func (s *Step) Succeeds(status int) bool {
	if len(s.Success) == 0 {
		return status >= 200 && status <= 299
	}
	return slices.Contains(s.Success, status)
}

// Step returns the step of a name, or nil.
func (r *Rule) Step(name string) *Step {
	if i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Name == name }); i >= 0 {
		return &r.Steps[i]
	}
	return nil
}

// StepKey returns the key by which the destination recognizes a step. It is the same for each
// attempt. It differs for each step, rule version, and run that forced the effect.
func StepKey(key string, version, forced int, step string, undo bool) string {
	h := sha256.New()
	for _, part := range []string{key, strconv.Itoa(version), strconv.Itoa(forced), step, strconv.FormatBool(undo)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return "postern-" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:24])
}

// RenderedRequest is a request with rendered templates. It is stored, so it contains nothing of the
// destination's own configuration.
type RenderedRequest struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
	// From and To are the envelope of a mail, whose message is Body.
	From string   `json:"from,omitempty"`
	To   []string `json:"to,omitempty"`
}

// Render renders the templates of a request; key is the step's key.
func (r *Request) Render(f *TemplateData, key string) (out RenderedRequest, err error) {
	if r.Mail != nil {
		if out, err = r.Mail.Render(f); err != nil {
			return out, err
		}
		return out, out.checkStorable()
	}
	out = RenderedRequest{Method: r.Method, Headers: map[string]string{}}
	if out.Path, err = r.Path.RenderURL(f); err != nil {
		return out, fmt.Errorf("path: %w", err)
	}
	for name, value := range r.Headers {
		if out.Headers[name], err = value.Render(f); err != nil {
			return out, fmt.Errorf("headers.%s: %w", name, err)
		}
		if strings.ContainsFunc(out.Headers[name], func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return out, fmt.Errorf("headers.%s: contains a line end or another control character", name)
		}
	}
	if r.KeyHeader != "" {
		out.Headers[r.KeyHeader] = key
	}
	if err := r.renderBody(f, &out); err != nil {
		return out, err
	}
	return out, out.checkStorable()
}

// checkStorable rejects a request that the ledger cannot store unchanged.
func (r *RenderedRequest) checkStorable() error {
	if err := checkStorable(r.Path); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	for name, value := range r.Headers {
		if err := checkStorable(value); err != nil {
			return fmt.Errorf("headers.%s: %w", name, err)
		}
	}
	if err := checkStorable(r.Body); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

// forwardedBody is the body of a step that forwards what its rule saw, a contract with receivers.
type forwardedBody struct {
	// Type is the object's type with the suffix .changed, .event or .window. Timestamp is when the
	// event was received, or the end of the window.
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"`
	// Data has old, new, object and event. For an event there is no old. For a schedule it has new,
	// object, window and, if the rule has one, summary.
	Data json.RawMessage `json:"data"`
}

func (f *TemplateData) forwardedBody() any {
	switch f.On {
	case OnRevision:
		return f.Change // a message of the feed of changes
	case OnSchedule:
		return forwardedBody{Type: f.Object.Type + ".window", Timestamp: f.Window.End, Data: f.Raw}
	case OnEvent:
		return forwardedBody{Type: f.Object.Type + ".event", Timestamp: f.Event.ReceivedAt, Data: f.Raw}
	case OnChange:
	}
	return forwardedBody{Type: f.Object.Type + ".changed", Timestamp: f.Event.ReceivedAt, Data: f.Raw}
}

func (r *Request) renderBody(f *TemplateData, out *RenderedRequest) error {
	kind := ""
	switch {
	case r.Forward:
		b, err := json.Marshal(f.forwardedBody())
		if err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		kind, out.Body = "application/json", string(b)
	case r.JSON != nil:
		v, err := r.JSON.Render(f)
		if err != nil {
			return fmt.Errorf("json: %w", err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("json: %w", err)
		}
		kind, out.Body = "application/json", string(b)
	case r.Form != nil:
		form, err := renderForm(r.Form, f)
		if err != nil {
			return err
		}
		kind, out.Body = "application/x-www-form-urlencoded", form
	case r.Text != nil:
		text, err := r.Text.Render(f)
		if err != nil {
			return fmt.Errorf("text: %w", err)
		}
		kind, out.Body = "text/plain; charset=utf-8", text
	}
	if _, named := out.Headers["Content-Type"]; kind != "" && !named {
		out.Headers["Content-Type"] = kind
	}
	return nil
}
