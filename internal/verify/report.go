package verify

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/spool"
)

// Kind is a way in which what is stored can be wrong.
type Kind string

// The kinds of violations.
const (
	KeyWithoutEvent     Kind = "key_without_event"
	EventWithoutKey     Kind = "event_without_key"
	KeyDiffers          Kind = "key_differs"
	EventWithoutOutcome Kind = "event_without_outcome"
	OutcomeWithoutEvent Kind = "outcome_without_event"
	WaitsTooLong        Kind = "waits_too_long"
	BodyMissing         Kind = "body_missing"
	FingerprintDiffers  Kind = "fingerprint_differs"
	RedactionUndone     Kind = "redaction_undone"
	SignatureWrong      Kind = "signature_wrong"
	ObjectMissing       Kind = "object_missing"
	ObjectBehind        Kind = "object_behind"
	ObjectDiffers       Kind = "object_differs"
	TombstoneRevived    Kind = "tombstone_revived"
	SpoolDamaged        Kind = "spool_damaged"
	SpoolTorn           Kind = "spool_torn"
	SpoolNotTaken       Kind = "spool_not_taken"
	SpoolRefused        Kind = "spool_refused"
	EffectTwice         Kind = "effect_twice"
	EffectWrong         Kind = "effect_wrong"
)

// about is what a kind means and what mends it.
type about struct {
	kind        Kind
	means, mend string
}

const rebuildIt = "postern rebuild makes the objects of a source anew, and compares them before it writes"

// kinds are all kinds in the order of a report.
var kinds = []about{
	{KeyWithoutEvent, "a key says that an event was stored, and the day of the log that it belongs to does not have it",
		"nothing brings its body back but a backup; postern reconcile reads the provider's objects instead"},
	{EventWithoutKey, "an event has no key, so that the same delivery would be stored again",
		"run the statement as the owner of the tables; if it finds the key taken, the event is stored twice"},
	{KeyDiffers, "an event and its key do not agree on source, key or fingerprint",
		"compare both with a backup; restore the wrong one as the owner of the tables"},
	{EventWithoutOutcome, "the auditor has passed an event that has no outcome, so nobody applies it any more",
		"run the statement as the owner of the tables: the auditor goes back and publishes the event again"},
	{OutcomeWithoutEvent, "an event was applied, and the day of the log that it belongs to does not have it",
		"nothing brings it back but a backup; postern export keeps one"},
	{WaitsTooLong, "something waits for longer than it should",
		"is a processor running, and does it reach NATS? see postern top"},
	{BodyMissing, "an event that nobody has redacted has no body",
		"nothing brings it back but a backup"},
	{FingerprintDiffers, "a body is not that which was stored",
		"compare it with a backup; whoever is the owner of the tables, or of the disk, can have changed it"},
	{RedactionUndone, "an event that was redacted has a body or headers again",
		"was a backup restored over it? redact it again, with another reason"},
	{SignatureWrong, "a stored delivery is not proven any more by the secret that proved it",
		"was the secret replaced under its name? then name it otherwise; else compare the event with a backup"},
	{ObjectMissing, "events were applied to an object that is not in the mirror", rebuildIt},
	{ObjectBehind, "an object has an older version than its events make", rebuildIt},
	{ObjectDiffers, "an object is not what its events make", rebuildIt},
	{TombstoneRevived, "an object that was deleted for good is there again", rebuildIt},
	{SpoolDamaged, "a file of a spool is damaged, so that deliveries in it that were acknowledged may be lost",
		"postern reconcile reads from the provider what came at that time; then move the file away, and look at the disk"},
	{SpoolTorn, "the last record of a file of a spool is not whole: a write that was cut off, which was not acknowledged, or a damaged delivery, which was",
		"did that gateway end without a stop, or its machine, when the file was last written? if not, postern reconcile reads from the provider what came at that time; then remove the file"},
	{SpoolNotTaken, "a file of a spool was set apart since it could not be read whole, and this delivery in it can be read and is not in the log",
		"run the command, and start the gateway of that folder again: it takes what is not in the log yet"},
	{SpoolRefused, "a delivery that was acknowledged cannot be appended, and is kept beside the spool",
		"the gateway's log says why, at the time the file was made; have the provider send it again once that is mended, or run postern reconcile; then remove the file"},
	{EffectTwice, "two effects have one key and version of their rule, so that what is to happen once can happen twice",
		"the index effects_key is damaged, as by another version of the system's sorting rules: reject one of them, see at the other side what was done, and have the index made anew (REINDEX)"},
	{EffectWrong, "an effect, or a step of one, is in a state in which nobody leaves it",
		"was the ledger restored or changed by hand? look at the other side, then say what is so with postern effects resolve, or reject it"},
}

// Item is one offender; what does not apply is empty.
type Item struct {
	Event      int64  `json:"event,string,omitzero"`
	Effect     int64  `json:"effect,omitzero"`
	Source     string `json:"source,omitzero"`
	Account    string `json:"account,omitzero"`
	ObjectType string `json:"object_type,omitzero"`
	ObjectID   string `json:"object_id,omitzero"`
	// File is of a spool.
	File string `json:"file,omitzero"`
	// Detail is what is wrong, in words; Mend is the command or the SQL statement that mends it, where there is one.
	Detail string `json:"detail"`
	Mend   string `json:"mend,omitzero"`
}

// Finding is a kind of violation that was found.
type Finding struct {
	Kind Kind `json:"kind"`
	// Count is how many there are, Items the first some.
	Count int64  `json:"count"`
	Means string `json:"means"`
	Mend  string `json:"mend"`
	Items []Item `json:"items"`
}

// Wait is something that is not done yet and is in nobody's way until it is too old.
type Wait struct {
	What string `json:"what"`
	// Count is how many wait, Since the time of the oldest, and Seconds its age.
	Count   int64          `json:"count"`
	Since   events.Instant `json:"since"`
	Seconds float64        `json:"seconds"`
}

// Spool is what a spool's folder held when it was looked at.
type Spool struct {
	Dir string `json:"dir"`
	// Name is by what the database knows it; "": a gateway of before that was kept has made it.
	Name string `json:"spool,omitzero"`
	// Deliveries are those that can be read: of these InLog are in the log, so that draining them changes nothing, and Waiting are not.
	Deliveries int64       `json:"deliveries"`
	InLog      int64       `json:"in_log"`
	Waiting    int64       `json:"waiting"`
	Files      []SpoolFile `json:"files"`
}

// SpoolFile is a file of a spool.
type SpoolFile struct {
	Name  string      `json:"name"`
	State spool.State `json:"state"`
	// Deliveries, InLog and Waiting are as the spool's; Bytes are those of what can be read.
	Deliveries int64 `json:"deliveries"`
	Bytes      int64 `json:"bytes"`
	InLog      int64 `json:"in_log"`
	Waiting    int64 `json:"waiting"`
	// Oldest is when the oldest of those that wait was acknowledged; nil: none waits.
	Oldest *events.Instant `json:"oldest,omitempty"`
	// Damaged is how many places were found at which a delivery was acknowledged and cannot be read; Torn: the file ends in something that is no whole record.
	Damaged int  `json:"damaged"`
	Torn    bool `json:"torn"`
	// Unreadable is why nothing more of the file can be read; "": it can.
	Unreadable string `json:"unreadable,omitzero"`
	// Then is what becomes of the file, in words.
	Then string `json:"then"`
}

// Report is what was looked at, and what was found.
type Report struct {
	// At is the moment that the report is of, by the database's clock.
	At events.Instant `json:"at"`
	// Looked is how much was looked at, by what: keys, events, outcomes, bodies, signatures, objects, spooled (deliveries).
	Looked map[string]int64 `json:"looked"`
	// Spools are those that were named.
	Spools []Spool `json:"spools,omitzero"`
	// Waiting is what is under way.
	Waiting []Wait `json:"waiting"`
	// Notes are what else a person should know: what was not checked and why.
	Notes []string `json:"notes"`
	// Findings are the violations by kind; none where all is well.
	Findings []Finding `json:"findings"`
}

// Violations is how many were found.
func (r *Report) Violations() (n int64) {
	for i := range r.Findings {
		n += r.Findings[i].Count
	}
	return n
}

// tally collects what several goroutines find.
type tally struct {
	mu     sync.Mutex
	most   int
	found  map[Kind]*Finding
	looked map[string]int64
	notes  map[string]int64
}

func newTally(most int) *tally {
	return &tally{most: most, found: map[Kind]*Finding{}, looked: map[string]int64{}, notes: map[string]int64{}}
}

// add counts a violation, and keeps it if it is one of the first.
func (t *tally) add(kind Kind, item Item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.found[kind]
	if f == nil {
		f = &Finding{Kind: kind, Items: []Item{}}
		t.found[kind] = f
	}
	if f.Count++; len(f.Items) < t.most {
		f.Items = append(f.Items, item)
	}
}

// look counts what was looked at and returns how much of it there was.
func (t *tally) look(what string, n int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked[what] += n
	return t.looked[what]
}

// note counts something that is worth a line; the first %d in the text stands for how often.
func (t *tally) note(text string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes[text] += n
}

// report is all of it in a fixed order.
func (t *tally) report(at time.Time, waiting []Wait) *Report {
	r := &Report{At: events.Instant{Time: at}, Looked: t.looked, Waiting: waiting, Notes: []string{}, Findings: []Finding{}}
	for _, a := range kinds {
		if f := t.found[a.kind]; f != nil {
			f.Means, f.Mend = a.means, a.mend
			slices.SortStableFunc(f.Items, func(a, b Item) int {
				return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Account, b.Account), cmp.Compare(a.ObjectType, b.ObjectType), cmp.Compare(a.ObjectID, b.ObjectID), cmp.Compare(a.File, b.File), cmp.Compare(a.Effect, b.Effect))
			})
			r.Findings = append(r.Findings, *f)
		}
	}
	for text, n := range t.notes {
		r.Notes = append(r.Notes, strings.Replace(text, "%d", strconv.FormatInt(n, 10), 1))
	}
	slices.Sort(r.Notes)
	return r
}
