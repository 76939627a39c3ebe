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

// Kind is a kind of violation.
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
	ObjectOlder         Kind = "object_older"
	ObjectDiffers       Kind = "object_differs"
	TombstoneRevived    Kind = "tombstone_revived"
	SpoolDamaged        Kind = "spool_damaged"
	SpoolTorn           Kind = "spool_torn"
	SpoolMissingInLog   Kind = "spool_missing_in_log"
	SpoolQuarantined    Kind = "spool_quarantined"
	EffectTwice         Kind = "effect_twice"
	EffectWrong         Kind = "effect_wrong"
)

// kindText describes a kind and its repair.
type kindText struct {
	kind            Kind
	meaning, repair string
}

const rebuildRepair = "postern rebuild builds the objects of a source again, and compares them before it writes"

// kinds are all kinds in the order of the report.
var kinds = []kindText{
	{KeyWithoutEvent, "a key says that an event was stored, but its partition of the log does not have the event",
		"only a backup restores its body; postern reconcile reads the provider's objects instead"},
	{EventWithoutKey, "an event has no key, so that the same delivery would be stored again",
		"run the statement as the owner of the tables; if the key is taken, the event is stored twice"},
	{KeyDiffers, "an event and its key differ in source, key or fingerprint",
		"compare both with a backup; restore the wrong one as the owner of the tables"},
	{EventWithoutOutcome, "the republisher has passed an event without an outcome, so no process applies it any more",
		"run the statement as the owner of the tables: the republisher goes back and publishes the event again"},
	{OutcomeWithoutEvent, "an event was applied, but its partition of the log does not have it",
		"only a backup restores it; postern export makes such a backup"},
	{WaitsTooLong, "something waits longer than allowed",
		"check whether a processor runs and reaches NATS: see postern top"},
	{BodyMissing, "an event without a redaction has no body",
		"only a backup restores it"},
	{FingerprintDiffers, "a body differs from the one that was stored",
		"compare it with a backup; the owner of the tables or of the disk may have changed it"},
	{RedactionUndone, "a redacted event has a body or headers again",
		"a backup may have restored it: redact it again, with another reason"},
	{SignatureWrong, "the secret that verified a stored delivery does not verify it any more",
		"if the secret was replaced under its name, give the new one another " +
			"name; else compare the event with a backup"},
	{ObjectMissing, "events were applied to an object that is not in the mirror", rebuildRepair},
	{ObjectOlder, "an object is older than the result of its events", rebuildRepair},
	{ObjectDiffers, "an object differs from the result of its events", rebuildRepair},
	{TombstoneRevived, "an object that was deleted for good exists again", rebuildRepair},
	{SpoolDamaged, "a file of a spool is damaged, so acknowledged deliveries in it may be lost",
		"postern reconcile reads the events of that time from the provider; " +
			"then move the file away, and check the disk"},
	{SpoolTorn, "the last record of a file of a spool is incomplete: an interrupted write, which was not " +
		"acknowledged, or a damaged delivery, which was",
		"check whether the gateway or its machine crashed when the file was last written. If not, postern " +
			"reconcile reads the events of that time from the provider. Then remove the file"},
	{SpoolMissingInLog, "a file of a spool is quarantined because it could not be read completely, and this delivery " +
		"in it can be read and is not in the log",
		"run the command and restart the gateway of that folder: it appends what is not in the log yet"},
	{SpoolQuarantined, "an acknowledged delivery cannot be appended, and is kept next to the spool",
		"the gateway's log has the reason, at the time of the file. Correct the cause and let the provider send it " +
			"again, or run postern reconcile; then remove the file"},
	{EffectTwice, "two effects have the same key and rule version, so an action may be executed twice",
		"the index effects_key is damaged, for example by another version of the system's collation: reject one " +
			"effect, check at the destination what was done, and rebuild the index (REINDEX)"},
	{EffectWrong, "an effect, or a step of one, is in a state that no process can leave",
		"the ledger may have been restored or changed manually: check the destination, then record the outcome with " +
			"postern effects resolve, or reject it"},
}

// Item is one violation; fields that do not apply are empty.
type Item struct {
	Event      int64  `json:"event,string,omitzero"`
	Effect     int64  `json:"effect,omitzero"`
	Source     string `json:"source,omitzero"`
	Account    string `json:"account,omitzero"`
	ObjectType string `json:"object_type,omitzero"`
	ObjectID   string `json:"object_id,omitzero"`
	// File is a file of a spool.
	File string `json:"file,omitzero"`
	// Detail says what is wrong. Repair is the command or SQL statement that repairs it, if there
	// is one.
	Detail string `json:"detail"`
	Repair string `json:"remedy,omitzero"`
}

// Finding is a kind of violation with its items.
type Finding struct {
	Kind Kind `json:"kind"`
	// Count is the number of violations. Items are the first violations; a stored report has none.
	Count   int64  `json:"count"`
	Meaning string `json:"means"`
	Repair  string `json:"remedy"`
	Items   []Item `json:"items,omitempty"`
}

// Wait is unfinished work. It is a violation only when it is too old.
type Wait struct {
	Work string `json:"work"`
	// Count is how many items wait, Since the time of the oldest, and Seconds its age.
	Count   int64          `json:"count"`
	Since   events.Instant `json:"since"`
	Seconds float64        `json:"seconds"`
}

// Spool is the content of a spool's folder when it was checked.
type Spool struct {
	Dir string `json:"dir"`
	// Name is the spool's name in the database; "" if an older gateway created the spool.
	Name string `json:"spool,omitzero"`
	// Deliveries counts the readable deliveries. InLog counts the deliveries that are in the log,
	// which draining does not change, and Waiting the others.
	Deliveries int64       `json:"deliveries"`
	InLog      int64       `json:"in_log"`
	Waiting    int64       `json:"waiting"`
	Files      []SpoolFile `json:"files"`
}

// SpoolFile is a file of a spool.
type SpoolFile struct {
	Name  string      `json:"name"`
	State spool.State `json:"state"`
	// Deliveries counts the readable deliveries of the file. InLog counts those that are in the
	// log, and Waiting the others. Bytes is the size of the readable part.
	Deliveries int64 `json:"deliveries"`
	Bytes      int64 `json:"bytes"`
	InLog      int64 `json:"in_log"`
	Waiting    int64 `json:"waiting"`
	// Oldest is when the oldest waiting delivery was acknowledged; nil if none waits.
	Oldest *events.Instant `json:"oldest,omitempty"`
	// Damaged counts the places with an acknowledged delivery that cannot be read. Torn is true if
	// the file ends with an incomplete record.
	Damaged int  `json:"damaged"`
	Torn    bool `json:"torn"`
	// Unreadable is the reason why the rest of the file cannot be read; "" if it can.
	Unreadable string `json:"unreadable,omitzero"`
	// NextStep says what happens to the file next.
	NextStep string `json:"then"`
}

// Report says what was checked and what was found.
type Report struct {
	// At is the time of the snapshot, by the database's clock.
	At events.Instant `json:"at"`
	// Checked counts what was checked: keys, events, outcomes, bodies, signatures, objects, spooled
	// (deliveries).
	Checked map[string]int64 `json:"checked"`
	// Spools are the spools whose folders were checked.
	Spools []Spool `json:"spools,omitzero"`
	// Waiting is unfinished work.
	Waiting []Wait `json:"waiting"`
	// Notes says what was not checked and why, and other advice.
	Notes []string `json:"notes"`
	// Findings are the violations by kind; empty if there are none.
	Findings []Finding `json:"findings"`
}

// Violations returns the number of violations.
func (r *Report) Violations() (n int64) {
	for i := range r.Findings {
		n += r.Findings[i].Count
	}
	return n
}

// collector collects the results of several goroutines.
type collector struct {
	mu       sync.Mutex
	maxItems int
	found    map[Kind]*Finding
	checked  map[string]int64
	notes    map[string]int64
}

func newCollector(maxItems int) *collector {
	return &collector{maxItems: maxItems, found: map[Kind]*Finding{}, checked: map[string]int64{},
		notes: map[string]int64{}}
}

// add counts a violation, and keeps the first ones.
func (t *collector) add(kind Kind, item Item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.found[kind]
	if f == nil {
		f = &Finding{Kind: kind, Items: []Item{}}
		t.found[kind] = f
	}
	if f.Count++; len(f.Items) < t.maxItems {
		f.Items = append(f.Items, item)
	}
}

// countChecked adds to the number of checked items and returns it.
func (t *collector) countChecked(what string, n int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checked[what] += n
	return t.checked[what]
}

// note counts a note; its count replaces the first %d in the text.
func (t *collector) note(text string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes[text] += n
}

// newReport returns the report in a fixed order.
func (t *collector) newReport(at time.Time, waiting []Wait) *Report {
	r := &Report{At: events.Instant{Time: at}, Checked: t.checked, Waiting: waiting, Notes: []string{},
		Findings: []Finding{}}
	for _, a := range kinds {
		if f := t.found[a.kind]; f != nil {
			f.Meaning, f.Repair = a.meaning, a.repair
			slices.SortStableFunc(f.Items, func(a, b Item) int {
				return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Source, b.Source),
					cmp.Compare(a.Account, b.Account), cmp.Compare(a.ObjectType, b.ObjectType),
					cmp.Compare(a.ObjectID, b.ObjectID), cmp.Compare(a.File, b.File), cmp.Compare(a.Effect, b.Effect))
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
