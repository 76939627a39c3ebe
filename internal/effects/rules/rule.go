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

// Rule says what follows when an object changes, or when its time has come. What of it is text was compiled, so that it is for any number of goroutines.
type Rule struct {
	Name string
	// Source and Type are whose objects it is about.
	Source, Type string
	// On is what it is asked about; "" is OnChange.
	On On
	// Schedule is when, for OnSchedule alone.
	Schedule *Schedule
	// When is the condition; nil: each change.
	When *Expression
	// Key names the intent: what has one key, and one version of the rule, follows once.
	Key *Text
	// Version is raised by whoever wants what has followed already to follow again under a new policy.
	Version int
	// Approval says when a person has to agree first.
	Approval Approval
	// ApprovalExpires is how long an effect waits for that; 0: for ever.
	ApprovalExpires time.Duration
	// Supersede: a newer effect of the rule about the same object takes the place of one of which nothing was begun.
	Supersede bool
	Steps     []Step
}

// Approval says when a person has to agree before an effect's first step.
type Approval string

// The policies of approval.
const (
	ApproveNone     Approval = "none"
	ApproveRequired Approval = "required"
	// ApproveOnReplay is for what is planned by a run over stored events alone.
	ApproveOnReplay Approval = "required_on_replay"
)

// Step is one call to another side.
type Step struct {
	Name, Destination string
	Do                Request
	// Success are the statuses that mean that it is done; none: 200 to 299.
	Success []int
	// Capture are paths into the answer's JSON, by the name that later steps see.
	Capture map[string]string
	// Check asks the other side whether the step was done already; nil: nobody can say.
	Check *Check
	// Undo takes back what the step has done; nil: it cannot be.
	Undo *Request
	// Once: it must not be sent again where nobody knows whether it was done. Without it, the other side knows it by its key.
	Once    bool
	Timeout time.Duration
	Retry   Retry
}

// Request is what is sent. Path is joined to the destination's URL.
type Request struct {
	Method  string
	Path    *Text
	Headers map[string]*Text
	// JSON, Form and Text are the body; at most one is set. A form's values are texts.
	JSON *Tree
	Form map[string]*Text
	Text *Text
	// Forward: the body is the change itself.
	Forward bool
	// KeyHeader carries the step's key; empty: none does.
	KeyHeader string
	// Mail: the request is a message to a mail server, and all else is unset.
	Mail *Mail
}

// Check asks whether a step was done. Done is evaluated over answer.status and answer.body; where it holds, Capture of the step reads the path Found of the body.
type Check struct {
	Request
	// Destination is who is asked.
	Destination string
	Done        *Expression
	Found       string
	// Settles is how long after an attempt's end nobody is asked, since it may be done still.
	Settles time.Duration
	// Again: what was not done, as the other side says, is sent again; else a person decides.
	Again bool
}

// Retry is when a step that came to nothing is tried again.
type Retry struct {
	// First is the wait before the second attempt; each further one is Factor times as long, up to Longest, and up to a fifth more or less, so that what failed together does not come back together.
	First, Longest time.Duration
	Factor         float64
	// Attempts is the most there are, and Age for how long it is tried since its first attempt, or the first after a person had it go on; then a person is asked.
	Attempts int
	Age      time.Duration
	// On are the statuses of 4xx after which the step is tried again: it was not done, and may be later. After another one of 4xx a person is asked.
	On []int
}

// Wait is how long to wait after so many attempts; spread is from 0 to 1.
func (r Retry) Wait(attempts int, spread float64) time.Duration {
	wait := float64(r.First)
	for range attempts - 1 {
		if wait *= r.Factor; wait >= float64(r.Longest) {
			wait = float64(r.Longest)
			break
		}
	}
	return time.Duration(wait * (0.8 + 0.4*spread))
}

// Succeeds says whether a status is one of success.
func (s *Step) Succeeds(status int) bool {
	if len(s.Success) == 0 {
		return status >= 200 && status <= 299
	}
	return slices.Contains(s.Success, status)
}

// Step is the rule's step of a name; nil: it has none.
func (r *Rule) Step(name string) *Step {
	if i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Name == name }); i >= 0 {
		return &r.Steps[i]
	}
	return nil
}

// StepKey is by what the other side knows a step: the same at each attempt, another for each step, version of the rule, and run that forced it.
func StepKey(key string, version, forced int, step string, undo bool) string {
	h := sha256.New()
	for _, part := range []string{key, strconv.Itoa(version), strconv.Itoa(forced), step, strconv.FormatBool(undo)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return "postern-" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:24])
}

// Rendered is a request whose templates are filled in. It is stored, so nothing of the destination's own is in it.
type Rendered struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
	// From and To are the envelope of a mail, whose message is Body.
	From string   `json:"from,omitempty"`
	To   []string `json:"to,omitempty"`
}

// Render fills in the templates of a request; key is the step's.
func (r *Request) Render(f *Facts, key string) (out Rendered, err error) {
	if r.Mail != nil {
		if out, err = r.Mail.Render(f); err != nil {
			return out, err
		}
		return out, out.sound()
	}
	out = Rendered{Method: r.Method, Headers: map[string]string{}}
	if out.Path, err = r.Path.RenderURL(f); err != nil {
		return out, fmt.Errorf("path: %w", err)
	}
	for name, value := range r.Headers {
		if out.Headers[name], err = value.Render(f); err != nil {
			return out, fmt.Errorf("headers.%s: %w", name, err)
		}
		if strings.ContainsFunc(out.Headers[name], func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return out, fmt.Errorf("headers.%s: holds a line end or another control character", name)
		}
	}
	if r.KeyHeader != "" {
		out.Headers[r.KeyHeader] = key
	}
	if err := r.body(f, &out); err != nil {
		return out, err
	}
	return out, out.sound()
}

// sound refuses a request that the ledger could not keep as it is sent.
func (r *Rendered) sound() error {
	if err := sound(r.Path); err != nil {
		return fmt.Errorf("path: %w", err)
	}
	for name, value := range r.Headers {
		if err := sound(value); err != nil {
			return fmt.Errorf("headers.%s: %w", name, err)
		}
	}
	if err := sound(r.Body); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

// forwarded is a change as it is forwarded: a contract others program against.
type forwarded struct {
	// Type is the object's type with .changed, or .event, and Timestamp when the event was received; of a schedule, the type with .window, and the window's end.
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"`
	// Data has old, new, object and event; of an event no old; of a schedule new, object and window.
	Data json.RawMessage `json:"data"`
}

func (f *Facts) forwarded() forwarded {
	switch f.On {
	case OnSchedule:
		return forwarded{Type: f.Object.Type + ".window", Timestamp: f.Window.End, Data: f.Raw}
	case OnEvent:
		return forwarded{Type: f.Object.Type + ".event", Timestamp: f.Event.ReceivedAt, Data: f.Raw}
	case OnChange:
	}
	return forwarded{Type: f.Object.Type + ".changed", Timestamp: f.Event.ReceivedAt, Data: f.Raw}
}

func (r *Request) body(f *Facts, out *Rendered) error {
	kind := ""
	switch {
	case r.Forward:
		b, err := json.Marshal(f.forwarded())
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
		values, err := renderForm(r.Form, f)
		if err != nil {
			return err
		}
		kind, out.Body = "application/x-www-form-urlencoded", values
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
