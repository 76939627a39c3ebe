// Package effects is the ledger of side effects: what must follow from changes of objects is planned here, in the transaction that makes the change.
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

// Transition is a change that an event made of an object: from what was certain of it to what is certain now. Of an event alone there is no Old, and New is what the event itself says. What a schedule shows of an object has no Old and no Event.
type Transition struct {
	// On is what rules are asked about it; "" is a change.
	On rules.On
	// Window is the schedule's.
	Window Window

	// Source is the source's name and Number its number.
	Source string
	Number int32

	Account, Type, ID string
	// Old and New are the states as JSON; nil: there was none, or none is told of what is gone.
	Old, New []byte
	Deleted  bool
	Event    Event
}

// Window is the time that a schedule asks about; zero for none.
type Window struct{ Start, End time.Time }

// Event is the one that made a change. OccurredAt is zero where the provider tells none.
type Event struct {
	ID                     int64
	Key, Type, Origin      string
	OccurredAt, ReceivedAt time.Time
}

// State is how far an effect has come.
type State string

// The states of effects.
const (
	Waiting    State = "waiting"    // for a person to approve it
	Planned    State = "planned"    // its next step is to be taken
	Running    State = "running"    // its next step is being taken
	Failed     State = "failed"     // its next step came to nothing and is tried again
	Review     State = "review"     // a person must see what is to be done
	Done       State = "done"       // all its steps are done, or undone
	Rejected   State = "rejected"   // by a person
	Expired    State = "expired"    // nobody approved it in time
	Superseded State = "superseded" // a newer one took its place
)

// NotConfigured is in the reason of an effect that waits for its rule, or for a destination: what is not there may come.
const NotConfigured = "is not configured"

// StepState is how far a step has come.
type StepState string

// The states of steps that were begun.
const (
	Reserved   StepState = "reserved" // the call may be under way
	StepDone   StepState = "done"
	StepFailed StepState = "failed"  // it was not done
	Unknown    StepState = "unknown" // nobody knows whether it was done
)

// Doubt is what clears up a lost answer of a step.
type Doubt string

// The ways out of doubt.
const (
	DoubtKey    Doubt = "key"    // the step is sent again, and the other side knows it by its key
	DoubtCheck  Doubt = "check"  // the other side is asked whether it was done
	DoubtPerson Doubt = "person" // a person says what happened
)

// maxKey bounds a key, so that it fits its index.
const maxKey = 500

// Rules are the rules in use. They do not change; another configuration has others.
type Rules struct {
	about map[concern][]*rules.Rule
	named map[string]*rules.Rule
	// scheduled are those on a schedule.
	scheduled []*rules.Rule
}

// concern is whose objects a rule is about, and what it is asked about them.
type concern struct {
	on                 rules.On
	source, objectType string
}

// NewRules are these rules, whose names differ.
func NewRules(all []*rules.Rule) *Rules {
	r := &Rules{about: map[concern][]*rules.Rule{}, named: map[string]*rules.Rule{}}
	for _, rule := range all {
		about := concern{cmp.Or(rule.On, rules.OnChange), rule.Source, rule.Type}
		r.about[about] = append(r.about[about], rule)
		r.named[rule.Name] = rule
		if rule.On == rules.OnSchedule {
			r.scheduled = append(r.scheduled, rule)
		}
	}
	return r
}

// None says that there is no rule.
func (r *Rules) None() bool { return r == nil || len(r.named) == 0 }

// Concern says whether a rule is about changes of objects of a type. Nil has none.
func (r *Rules) Concern(source, objectType string) bool {
	return r != nil && len(r.about[concern{rules.OnChange, source, objectType}]) > 0
}

// Ask says whether a rule is asked about each event about objects of a type. Nil has none.
func (r *Rules) Ask(source, objectType string) bool {
	return r != nil && len(r.about[concern{rules.OnEvent, source, objectType}]) > 0
}

// Scheduled are the rules that are asked by a schedule. Nil has none.
func (r *Rules) Scheduled() []*rules.Rule {
	if r == nil {
		return nil
	}
	return r.scheduled
}

// Expiring are the rules whose effects expire that nobody approves in time, by their names.
func (r *Rules) Expiring() map[string]time.Duration {
	all := map[string]time.Duration{}
	if r == nil {
		return all
	}
	for name, rule := range r.named {
		if rule.ApprovalExpires > 0 {
			all[name] = rule.ApprovalExpires
		}
	}
	return all
}

// Named is the rule of a name; nil: there is none.
func (r *Rules) Named(name string) *rules.Rule {
	if r == nil {
		return nil
	}
	return r.named[name]
}

// Intent is an effect that a rule wants of a transition.
type Intent struct {
	Rule *rules.Rule
	Key  string
	// Trouble: the rule could not say what it wants, which a person must see, in a text that PostgreSQL can hold; Key is then one of our own.
	Trouble string

	t     *Transition
	facts json.RawMessage
}

// Of is the transition that it follows.
func (i *Intent) Of() *Transition { return i.t }

// Intents are what the rules want of a transition. They depend on nothing else: not on the time, nor on what else happens.
func (r *Rules) Intents(t *Transition) (all []Intent) {
	if r == nil {
		return nil
	}
	about := r.about[concern{cmp.Or(t.On, rules.OnChange), t.Source, t.Type}]
	if len(about) == 0 {
		return nil
	}
	return t.intents(about)
}

// IntentsOf are what one rule wants of a transition.
func IntentsOf(rule *rules.Rule, t *Transition) []Intent { return t.intents([]*rules.Rule{rule}) }

func (t *Transition) intents(about []*rules.Rule) (all []Intent) {
	stored, facts, err := t.facts()
	for _, rule := range about {
		intent := Intent{Rule: rule, t: t, facts: stored}
		wanted := true
		if err == nil {
			wanted, intent.Key, intent.Trouble = want(rule, facts)
		} else {
			intent.Trouble = err.Error()
		}
		if intent.Trouble != "" {
			intent.Trouble = rules.Plain(intent.Trouble)
			intent.Key = t.troubleKey(rule.Name)
		}
		if wanted {
			all = append(all, intent)
		}
	}
	return all
}

// troubleKey is the key of what a rule could not say of an event.
func troubleKey(rule string, event int64) string { return fmt.Sprintf("%s:trouble:%d", rule, event) }

// troubleKey is the key of what a rule could not say of a transition: of an event, or of an object in a window.
func (t *Transition) troubleKey(rule string) string {
	if t.On == rules.OnSchedule {
		return fmt.Sprintf("%s:%s:%s", troubleKey(rule, 0), written(t.Window.End), t.hashed())
	}
	return troubleKey(rule, t.Event.ID)
}

// collisionKey is the key of what a rule wanted under the key of an effect of something else: of an event, or of an object, once for all windows that want the same.
func (t *Transition) collisionKey(rule string, with int64) string {
	if t.On == rules.OnSchedule {
		return fmt.Sprintf("%s:%s:%d", troubleKey(rule, 0), t.hashed(), with)
	}
	return fmt.Sprintf("%s:%d", troubleKey(rule, t.Event.ID), with)
}

// Collision says whether a key is one that a rule's effect of an event got since what it wanted was that of something else.
func Collision(key, rule string, event int64) bool {
	return strings.HasPrefix(key, troubleKey(rule, event)+":")
}

// hashed stands for the object in keys of our own.
func (t *Transition) hashed() string {
	object := sha256.Sum256(fmt.Appendf(nil, "%d %q %q", t.Number, t.Account, t.ID))
	return hex.EncodeToString(object[:16])
}

// want evaluates a rule. A panic of an expression is the rule's trouble, not the process's.
func want(rule *rules.Rule, f *rules.Facts) (wanted bool, key, trouble string) {
	defer func() {
		if p := recover(); p != nil {
			wanted, trouble = true, fmt.Sprintf("the rule panicked: %v", p)
		}
	}()
	if rule.When != nil {
		holds, err := rule.When.Holds(f)
		if err != nil {
			return true, "", "when: " + err.Error()
		}
		if !holds {
			return false, "", ""
		}
	}
	key, err := rule.Key.Render(f)
	switch {
	case err != nil:
		return true, "", "key: " + err.Error()
	case key == "":
		return true, "", "key: is empty"
	case len(key) > maxKey:
		return true, "", fmt.Sprintf("key: is %d bytes long, more than %d", len(key), maxKey)
	case strings.ContainsRune(key, 0), !utf8.ValidString(key):
		return true, "", "key: holds NUL or invalid UTF-8"
	}
	return true, key, ""
}

// storedFacts are facts as the ledger keeps them.
type storedFacts struct {
	Old    json.RawMessage `json:"old,omitempty"`
	New    json.RawMessage `json:"new"`
	Object storedObject    `json:"object"`
	Event  *storedEvent    `json:"event,omitempty"`
	Window *storedWindow   `json:"window,omitempty"`
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

// facts are what rules see of a transition, and the same as it is stored.
func (t *Transition) facts() (json.RawMessage, *rules.Facts, error) {
	s := storedFacts{New: orNull(t.New), Object: storedObject{t.Source, t.Account, t.Type, t.ID, t.Deleted}}
	if t.On == rules.OnSchedule {
		s.Window = &storedWindow{written(t.Window.Start), written(t.Window.End)}
	} else {
		s.Event = &storedEvent{strconv.FormatInt(t.Event.ID, 10), t.Event.Key, t.Event.Type, t.Event.Origin, written(t.Event.OccurredAt), written(t.Event.ReceivedAt)}
	}
	if cmp.Or(t.On, rules.OnChange) == rules.OnChange {
		s.Old = orNull(t.Old)
		if t.Deleted && t.New == nil {
			s.New = s.Old // of what is gone rules see the last state
		}
	}
	facts, err := s.facts(nil)
	if err != nil {
		s.New = orNull(nil)
		if s.Old != nil {
			s.Old = orNull(nil)
		}
	}
	stored, jsonErr := json.Marshal(s)
	if jsonErr != nil {
		return nil, nil, fmt.Errorf("store what the rule sees: %w", jsonErr)
	}
	return stored, facts, err
}

// facts are stored ones as rules see them.
func (s *storedFacts) facts(raw json.RawMessage) (*rules.Facts, error) {
	old, err := rules.Decode(present(s.Old))
	if err != nil {
		return nil, err
	}
	now, err := rules.Decode(present(s.New))
	if err != nil {
		return nil, err
	}
	f := &rules.Facts{Raw: raw, Old: old, New: now, Object: rules.Object(s.Object)}
	if s.Event != nil {
		f.Event = rules.Event(*s.Event)
	}
	switch {
	case s.Window != nil:
		f.On, f.Window = rules.OnSchedule, rules.Window(*s.Window)
	case s.Old == nil:
		f.On = rules.OnEvent
	default:
		f.On = rules.OnChange
	}
	return f, nil
}

// ReadFacts reads what the ledger keeps for the templates of an effect's steps.
func ReadFacts(stored []byte) (*rules.Facts, error) {
	if stored == nil {
		return nil, errors.New("what it was planned with was redacted: reject it")
	}
	var s storedFacts
	if err := json.Unmarshal(stored, &s); err != nil {
		return nil, fmt.Errorf("read what the effect was planned with: %w", err)
	}
	return s.facts(stored)
}

func orNull(b []byte) json.RawMessage {
	if b == nil {
		return json.RawMessage("null")
	}
	return b
}

func present(b json.RawMessage) []byte {
	if string(b) == "null" {
		return nil
	}
	return b
}

// written is a time in RFC 3339; empty for none.
func written(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
