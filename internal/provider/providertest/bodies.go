package providertest

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// unreadable are bodies that no provider sends; Suite.Readable lists the exceptions.
var unreadable = map[string]string{
	"empty":         "",
	"text":          "hello",
	"cut short":     `{"id": "evt_1", "type": `,
	"not UTF-8":     "{\"id\": \"\xff\xfe\"}",
	"too deep":      strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000),
	"deep arrays":   strings.Repeat("[", 100_000),
	"an array":      `[{"id": "evt_1"}]`,
	"null":          "null",
	"a number":      "1e999999",
	"two documents": `{"id":"evt_1"}{"id":"evt_2"}`,
	"bad escape":    "a=%zz&b=%",
}

func testUnreadableBodies(t *testing.T, s Suite) {
	sampleType := s.Provider.Samples()[0].Type
	for name, body := range unreadable {
		d, err := s.Provider.Sign(s.Source, provider.Sample{Type: sampleType, Body: []byte(body)}, now)
		switch {
		case err != nil && !s.readsBody():
			t.Fatalf("%s: sign: %v", name, err)
		// The sender cannot sign such a body. It is read anyway, like a rejected delivery that is
		// reprocessed.
		case err != nil:
			d = &provider.Delivery{Header: http.Header{}, Body: []byte(body)}
		default:
			if _, err := s.Provider.Verify(s.Source, d); err != nil {
				t.Errorf("%s: a body with a valid signature is rejected: %v", name, err)
			}
		}
		CheckSound(t, s.Provider, s.Source, d)
		events := s.identified(t, d)
		if e := events[0]; e.Key == "" || e.Type == "" || e.Fingerprint == [16]byte{} || len(events) != 1 {
			t.Errorf("%s: identified as %+v", name, events)
		}
		_, err = s.Provider.Observe(s.Source, s.stored(events, d)[0])
		if dead := new(provider.Dead); !slices.Contains(s.Readable, name) &&
			(!errors.As(err, &dead) || dead.Reason == "") {
			t.Errorf("%s: observe: error %v, want dead", name, err)
		}
	}
}

// stored returns events as they are read from the log.
func (s Suite) stored(events []provider.Event, d *provider.Delivery) []*provider.StoredEvent {
	out := make([]*provider.StoredEvent, len(events))
	for i, e := range events {
		out[i] = &provider.StoredEvent{Key: e.Key, Type: e.Type, Account: e.Account, APIVersion: e.APIVersion,
			ReceivedAt: d.ReceivedAt, Index: i, Body: d.Body}
	}
	return out
}

// Observed returns the event and the observation of a delivery with one event, through Identify and
// Observe.
func (s Suite) Observed(t *testing.T, d *provider.Delivery) (provider.Event, provider.Observation, error) {
	t.Helper()
	observed := s.ObservedAll(t, d)
	if len(observed) != 1 {
		t.Fatalf("the delivery has %d events", len(observed))
	}
	return observed[0].Event, observed[0].Observation, observed[0].Err
}

// ObservedEvent is what one event says about its object.
type ObservedEvent struct {
	Event       provider.Event
	Observation provider.Observation
	Err         error
}

// ObservedAll returns what each event of a delivery says, through Identify and Observe.
func (s Suite) ObservedAll(t *testing.T, d *provider.Delivery) []ObservedEvent {
	t.Helper()
	events := s.identified(t, d)
	out := make([]ObservedEvent, len(events))
	for i, stored := range s.stored(events, d) {
		o, err := s.Provider.Observe(s.Source, stored)
		out[i] = ObservedEvent{events[i], o, err}
	}
	return out
}

func testVariants(t *testing.T, s Suite) {
	at := now.Add(time.Hour)
	keys := map[string]bool{}
	for _, sample := range s.Provider.Samples() {
		before := s.ObservedAll(t, s.Deliver(t, s.Source, sample))
		for _, observed := range before {
			keys[observed.Event.Key] = true
		}
		for n := range 3 {
			variant, err := s.Provider.MakeVariant(sample, n, at, false)
			if err != nil || json.Valid(sample.Body) && !json.Valid(variant.Body) {
				t.Fatalf("variant of %s: %v", sample.Type, err)
			}
			for i, observed := range s.ObservedAll(t, s.Deliver(t, s.Source, variant)) {
				s.checkVariant(t, before[i], observed, at)
				if keys[observed.Event.Key] {
					t.Errorf("variant of %s: repeated key %s", sample.Type, observed.Event.Key)
				}
				keys[observed.Event.Key] = true
			}
		}
		s.checkNewObjects(t, sample, before)
	}
	if _, err := s.Provider.MakeVariant(provider.Sample{Body: []byte("{")}, 1, at, false); err == nil {
		t.Error("MakeVariant accepts an unreadable body")
	}
}

// minTime is less than every time in microseconds of a sample, and greater than every integer
// version.
const minTime = 1_000_000_000_000

func (s Suite) checkVariant(t *testing.T, before, after ObservedEvent, at time.Time) {
	t.Helper()
	e, o := after.Event, after.Observation
	if after.Err != nil || !s.ObjectPerEvent && o.ObjectID != before.Observation.ObjectID ||
		e.Type != before.Event.Type || e.ContentKey != before.Event.ContentKey {
		t.Errorf("variant of %s: event %+v of object %q, %v", before.Event.Type, e, o.ObjectID, after.Err)
	}
	if o.HasAt && o.At > minTime && o.At/1e6 != at.Unix() {
		t.Errorf("variant of %s: at %d, want %d s", e.Type, o.At, at.Unix())
	}
}

func (s Suite) checkNewObjects(t *testing.T, sample provider.Sample, before []ObservedEvent) {
	t.Helper()
	ids := map[[2]any]bool{}
	for i, observed := range before {
		ids[[2]any{i, observed.Observation.ObjectID}] = true
	}
	for n := range 3 {
		a, err := s.Provider.MakeVariant(sample, n, now, true)
		b, err2 := s.Provider.MakeVariant(sample, n, now, true)
		if err != nil || err2 != nil || cmp.Diff(a, b) != "" {
			t.Errorf("two equal variants of %s: %v, %v, %s", sample.Type, err, err2, cmp.Diff(a, b))
		}
		for i, observed := range s.ObservedAll(t, s.Deliver(t, s.Source, a)) {
			place := [2]any{i, observed.Observation.ObjectID}
			if observed.Err != nil || before[i].Observation.Ignored == "" && ids[place] {
				t.Errorf("variant of %s, object %d: repeated id %q, %v", sample.Type, n, observed.Observation.ObjectID,
					observed.Err)
			}
			ids[place] = true
		}
	}
}

// testVariantChanges checks that the later of two variants is newer. With VariantsChange it also
// checks that each variant changes the state, in the same second and in the next one.
func testVariantChanges(t *testing.T, s Suite) {
	at := time.Unix(1_790_000_000, 0)
	for _, sample := range s.Provider.Samples() {
		first, second := s.inputOf(t, sample, 1, at), s.inputOf(t, sample, 2, at)
		last := s.inputOf(t, sample, 12, at.Add(12*time.Second))
		if first == nil || s.ObjectPerEvent {
			continue
		}
		if first.Version.Compare(last.Version) >= 0 || second.Version.Compare(last.Version) >= 0 {
			t.Errorf("variant of %s: version %s after %s and %s", sample.Type, last.Version, first.Version,
				second.Version)
		}
		if !s.VariantsChange {
			continue
		}
		later := s.inputOf(t, sample, 1, at.Add(time.Second))
		for when, other := range map[string]*versioning.Input{"in one second": second, "a second later": later} {
			if first.State.Hash == other.State.Hash && s.UnchangedVariants[sample.Type] != when {
				t.Errorf("variant of %s: the same state, %s", sample.Type, when)
			}
		}
		if later.Version.Compare(first.Version) <= 0 {
			t.Errorf("variant of %s: versions %s and %s", sample.Type, first.Version, later.Version)
		}
	}
}

// inputOf returns the first input of the n-th variant of a sample; nil if it has no whole state
// that can change.
func (s Suite) inputOf(t *testing.T, sample provider.Sample, n int, at time.Time) *versioning.Input {
	t.Helper()
	made, err := s.Provider.MakeVariant(sample, n, at, false)
	if err != nil {
		t.Fatalf("variant of %s: %v", sample.Type, err)
	}
	o := s.ObservedAll(t, s.Deliver(t, s.Source, made))[0].Observation
	if o.Ignored != "" || o.Partial != "" || o.Deleted || o.State == nil {
		return nil
	}
	in, err := versioning.InputFromObservation(o, at.Add(5*time.Second))
	if err != nil {
		t.Fatalf("version of %s: %v", sample.Type, err)
	}
	return &in
}
