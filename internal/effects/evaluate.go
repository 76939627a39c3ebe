// Package effects is the ledger of side effects. It plans the effects that rules want for a change,
// in the transaction that applies the change, and it changes effects on behalf of operators. The
// processor, the schedule windows and the operations package call it. It never sends a request;
// package runner does that.
package effects

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// Transition is a change of an object by an event, from its last certain state to its new certain
// state. For a rule on events, Old is unset and New is the state that the event carries. For a rule
// on a schedule, Old and Event are unset.
type Transition struct {
	// On selects the rules that are evaluated; empty means OnChange.
	On rules.Trigger
	// Window is set for a rule on a schedule. Summary is JSON, set if the rule has a summary of
	// other objects; SummaryErr is set if that could not be made.
	Window     Window
	Summary    []byte
	SummaryErr error

	// Source is the name of the source, Number its number.
	Source string
	Number int32

	Account, Type, ID string
	// Old and New are states as JSON. Nil means that there was none, or that a deleted object has
	// none.
	Old, New []byte
	Deleted  bool
	Event    Event
}

// Window is the time range that a schedule evaluates. It is zero for a change or an event.
type Window struct{ Start, End time.Time }

// Event is the event that made a change. OccurredAt is zero if the provider does not report it.
type Event struct {
	ID                     int64
	Key, Type, Origin      string
	OccurredAt, ReceivedAt time.Time
}

// State is the progress of an effect.
type State string

// The states of effects.
const (
	AwaitingApproval State = "awaiting_approval" // waits for an operator to approve it
	Planned          State = "planned"           // its next step is due
	Running          State = "running"           // a processor executes its next step
	Failed           State = "failed"            // its next step failed and is retried
	Review           State = "needs_review"      // an operator has to decide
	Done             State = "done"              // all its steps are done or compensated
	Rejected         State = "rejected"          // an operator rejected it
	Expired          State = "expired"           // it was not approved in time
	Superseded       State = "superseded"        // a newer effect replaced it
)

// NotConfigured is part of the reason of an effect that waits for a rule or a destination. The
// configuration may bring the missing part later.
const NotConfigured = "is not configured"

// StepState is the progress of a step.
type StepState string

// The states of steps that have started or were skipped.
const (
	Checking   StepState = "checking" // the destination is asked before the first attempt
	Reserved   StepState = "reserved" // the request may be in progress
	StepDone   StepState = "done"
	StepFailed StepState = "failed"  // the step was not executed
	Unknown    StepState = "unknown" // it is unknown whether the step was executed
	Skipped    StepState = "skipped" // its condition was false, so it is not executed
)

// Ended reports whether the effect continues with the next step.
func (s StepState) Ended() bool { return s == StepDone || s == Skipped }

// Recovery is the way to clear up a step whose response was lost.
type Recovery string

// The ways to clear up an unknown outcome.
const (
	RecoverByKey      Recovery = "key"      // send the step again; the destination recognizes its key
	RecoverByCheck    Recovery = "check"    // ask the destination whether the step was executed
	RecoverByOperator Recovery = "operator" // an operator says what happened
)

// maxKeyBytes bounds a key, because it has to fit its index.
const maxKeyBytes = 500

// Rules is the set of rules of one configuration. It does not change.
type Rules struct {
	byConcern map[concern][]*rules.Rule
	byName    map[string]*rules.Rule
	// scheduled are the rules on a schedule, forwards those that forward revisions of objects.
	scheduled, forwards []*rules.Rule
}

// concern identifies the objects that a rule is about, and what triggers the rule.
type concern struct {
	on                 rules.Trigger
	source, objectType string
}

// NewRules returns a set of rules. Their names must differ.
func NewRules(all []*rules.Rule) *Rules {
	r := &Rules{byConcern: map[concern][]*rules.Rule{}, byName: map[string]*rules.Rule{}}
	for _, rule := range all {
		r.byName[rule.Name] = rule
		if rule.On == rules.OnRevision {
			r.forwards = append(r.forwards, rule)
			continue
		}
		key := concern{cmp.Or(rule.On, rules.OnChange), rule.Source, rule.Type}
		r.byConcern[key] = append(r.byConcern[key], rule)
		if rule.On == rules.OnSchedule {
			r.scheduled = append(r.scheduled, rule)
		}
	}
	return r
}

// Empty reports whether there is no rule.
func (r *Rules) Empty() bool { return r == nil || len(r.byName) == 0 }

// HasChangeRules reports whether a rule is about changes of objects of a type. A nil set has none.
func (r *Rules) HasChangeRules(source, objectType string) bool {
	return r != nil && len(r.byConcern[concern{rules.OnChange, source, objectType}]) > 0
}

// HasEventRules reports whether a rule is about events of objects of a type. A nil set has none.
func (r *Rules) HasEventRules(source, objectType string) bool {
	return r != nil && len(r.byConcern[concern{rules.OnEvent, source, objectType}]) > 0
}

// Scheduled returns the rules on a schedule. A nil set has none.
func (r *Rules) Scheduled() []*rules.Rule {
	if r == nil {
		return nil
	}
	return r.scheduled
}

// ApprovalExpirations returns, by rule name, how long an effect may wait for approval. It
// excludes rules without a limit.
func (r *Rules) ApprovalExpirations() map[string]time.Duration {
	all := map[string]time.Duration{}
	if r == nil {
		return all
	}
	for name, rule := range r.byName {
		if rule.ApprovalExpires > 0 {
			all[name] = rule.ApprovalExpires
		}
	}
	return all
}

// ByName returns the rule of a name, or nil.
func (r *Rules) ByName(name string) *rules.Rule {
	if r == nil {
		return nil
	}
	return r.byName[name]
}

// PlannedEffect is an effect that a rule wants for a transition.
type PlannedEffect struct {
	Rule *rules.Rule
	Key  string
	// Failure is set if the rule could not be evaluated, so that an operator has to act. PostgreSQL
	// can store the text. Key is then a generated one.
	Failure string

	transition   *Transition
	templateData json.RawMessage
}

// Transition returns the transition that the effect follows from.
func (e *PlannedEffect) Transition() *Transition { return e.transition }

// Evaluate returns the effects that the rules want for a transition. The result depends only on the
// rules and the transition, and not on the time or on other effects.
func (r *Rules) Evaluate(t *Transition) (all []PlannedEffect) {
	if r == nil {
		return nil
	}
	matching := r.byConcern[concern{cmp.Or(t.On, rules.OnChange), t.Source, t.Type}]
	if len(matching) == 0 {
		return nil
	}
	return t.evaluate(matching)
}

// EvaluateRule returns the effects that one rule wants for a transition.
func EvaluateRule(rule *rules.Rule, t *Transition) []PlannedEffect {
	return t.evaluate([]*rules.Rule{rule})
}

func (t *Transition) evaluate(matching []*rules.Rule) (all []PlannedEffect) {
	stored, data, err := t.templateData()
	for _, rule := range matching {
		planned := PlannedEffect{Rule: rule, transition: t, templateData: stored}
		wanted := true
		if err == nil {
			wanted, planned.Key, planned.Failure = evaluate(rule, data)
		} else {
			planned.Failure = err.Error()
		}
		if planned.Failure != "" {
			planned.Failure = rules.StorableMessage(planned.Failure)
			planned.Key = t.failureKey(rule.Name)
		}
		if wanted {
			all = append(all, planned)
		}
	}
	return all
}

// failureKey returns the generated key of a rule that failed for an event.
func failureKey(rule string, event int64) string { return fmt.Sprintf("%s:trouble:%d", rule, event) }

// failureKey returns the generated key of a rule that failed for a transition: for an event, or for
// an object in a window.
func (t *Transition) failureKey(rule string) string {
	if t.On == rules.OnSchedule {
		return fmt.Sprintf("%s:%s:%s", failureKey(rule, 0), formatTime(t.Window.End), t.objectHash())
	}
	return failureKey(rule, t.Event.ID)
}

// collisionKey returns the generated key of an effect whose own key belongs to an effect of another
// account. It names the event. Under a schedule it names the object instead, so that all windows
// in which the rule wants that key share one generated key.
func (t *Transition) collisionKey(rule string, with int64) string {
	if t.On == rules.OnSchedule {
		return fmt.Sprintf("%s:%s:%d", failureKey(rule, 0), t.objectHash(), with)
	}
	return fmt.Sprintf("%s:%d", failureKey(rule, t.Event.ID), with)
}

// IsCollisionKey reports whether a key was generated because the key that the rule wanted belonged
// to an effect of another account.
func IsCollisionKey(key, rule string, event int64) bool {
	return strings.HasPrefix(key, failureKey(rule, event)+":")
}

// objectHash identifies the object in generated keys.
func (t *Transition) objectHash() string {
	object := sha256.Sum256(fmt.Appendf(nil, "%d %q %q", t.Number, t.Account, t.ID))
	return hex.EncodeToString(object[:16])
}

// evaluate evaluates a rule. A panic of an expression becomes a failure of the rule and does not
// end the process.
func evaluate(rule *rules.Rule, data *rules.TemplateData) (wanted bool, key, failure string) {
	defer func() {
		if p := recover(); p != nil {
			wanted, failure = true, fmt.Sprintf("the rule panicked: %v", p)
		}
	}()
	if rule.When != nil {
		matches, err := rule.When.EvalBool(data)
		if err != nil {
			return true, "", "when: " + err.Error()
		}
		if !matches {
			return false, "", ""
		}
	}
	key, err := rule.Key.Render(data)
	switch {
	case err != nil:
		return true, "", "key: " + err.Error()
	case key == "":
		return true, "", "key: is empty"
	case len(key) > maxKeyBytes:
		return true, "", fmt.Sprintf("key: is %d bytes long, more than %d", len(key), maxKeyBytes)
	case strings.ContainsRune(key, 0), !utf8.ValidString(key):
		return true, "", "key: holds NUL or invalid UTF-8"
	}
	return true, key, ""
}

// storedTemplateData is the template data as the ledger stores it.
type storedTemplateData struct {
	Old    json.RawMessage `json:"old,omitempty"`
	New    json.RawMessage `json:"new"`
	Object storedObject    `json:"object"`
	Event  *storedEvent    `json:"event,omitempty"`
	Window *storedWindow   `json:"window,omitempty"`
	// Summary contains states of other objects; redaction finds them by the ids in it.
	Summary json.RawMessage `json:"summary,omitempty"`
	Change  json.RawMessage `json:"change,omitempty"`
}

type storedWindow struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

type storedObject struct {
	Source  string `json:"source"`
	Account string `json:"account"`
	Type    string `json:"type"`
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
}

type storedEvent struct {
	ID         string `json:"id"`
	Key        string `json:"key"`
	Type       string `json:"type"`
	Origin     string `json:"origin"`
	OccurredAt string `json:"occurred_at"`
	ReceivedAt string `json:"received_at"`
}

// templateData returns the data of a transition for rules and templates, and its stored form.
func (t *Transition) templateData() (json.RawMessage, *rules.TemplateData, error) {
	s := storedTemplateData{New: nullIfNil(t.New), Object: storedObject{t.Source, t.Account, t.Type, t.ID, t.Deleted}}
	if t.On == rules.OnSchedule {
		s.Window, s.Summary = &storedWindow{formatTime(t.Window.Start), formatTime(t.Window.End)}, t.Summary
	} else {
		s.Event = &storedEvent{strconv.FormatInt(t.Event.ID, 10), t.Event.Key, t.Event.Type, t.Event.Origin,
			formatTime(t.Event.OccurredAt), formatTime(t.Event.ReceivedAt)}
	}
	if cmp.Or(t.On, rules.OnChange) == rules.OnChange {
		s.Old = nullIfNil(t.Old)
		if t.Deleted && t.New == nil {
			s.New = s.Old // rules see the last state of a deleted object
		}
	}
	data, err := s.decode(nil)
	if err = cmp.Or(t.SummaryErr, err); err != nil {
		s.New = nullIfNil(nil)
		if s.Old != nil {
			s.Old = nullIfNil(nil)
		}
	}
	stored, jsonErr := json.Marshal(s)
	if jsonErr != nil {
		return nil, nil, fmt.Errorf("store the template data: %w", jsonErr)
	}
	return stored, data, err
}

// decode returns stored template data as rules see it.
func (s *storedTemplateData) decode(raw json.RawMessage) (*rules.TemplateData, error) {
	oldState, err := rules.Decode(nilIfNull(s.Old))
	if err != nil {
		return nil, err
	}
	newState, err := rules.Decode(nilIfNull(s.New))
	if err != nil {
		return nil, err
	}
	summary, err := rules.Decode(s.Summary)
	if err != nil {
		return nil, err
	}
	data := &rules.TemplateData{Raw: raw, Change: s.Change, Old: oldState, New: newState, Summary: summary,
		Object: rules.Object(s.Object)}
	if s.Event != nil {
		data.Event = rules.Event(*s.Event)
	}
	switch {
	case s.Change != nil:
		data.On = rules.OnRevision
	case s.Window != nil:
		data.On, data.Window = rules.OnSchedule, rules.Window(*s.Window)
	case s.Old == nil:
		data.On = rules.OnEvent
	default:
		data.On = rules.OnChange
	}
	return data, nil
}

// ReadTemplateData reads the stored data for the templates of an effect's steps.
func ReadTemplateData(stored []byte) (*rules.TemplateData, error) {
	if stored == nil {
		return nil, errors.New("its template data was redacted: reject the effect")
	}
	var s storedTemplateData
	if err := json.Unmarshal(stored, &s); err != nil {
		return nil, fmt.Errorf("read the template data of the effect: %w", err)
	}
	return s.decode(stored)
}

func nullIfNil(b []byte) json.RawMessage {
	if b == nil {
		return json.RawMessage("null")
	}
	return b
}

func nilIfNull(b json.RawMessage) []byte {
	if string(b) == "null" {
		return nil
	}
	return b
}

// formatTime formats a time as RFC 3339; a zero time becomes empty.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
