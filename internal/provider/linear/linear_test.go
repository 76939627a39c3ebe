package linear_test

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/linear"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/versioning"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:  linear.New(),
		Source:    providertest.Source("linear", "lin_wh_new", "lin_wh_old"),
		Signature: "Linear-Signature",
		SignsTime: true,
		Unit:      time.Millisecond,
		Tolerance: time.Minute,
		// Sign writes the time into the body, so these bodies change.
		Readable:  []string{"two documents", "not UTF-8"},
		NoKey:     func(_ *testing.T, _ *provider.Source, d *provider.Delivery) { d.Header.Del("Linear-Delivery") },
		Summaries: summaries,
		// printf '{"webhookTimestamp":1767258000123}' | openssl dgst -sha256 -hmac lin_wh_vector
		Vectors: []providertest.Vector{{Secret: "lin_wh_vector", Body: `{"webhookTimestamp":1767258000123}`,
			At: 1767258000,
			Headers: map[string]string{"Linear-Signature": "76635ce87cbdfcc5770badb0" +
				"e338e5594f43a03513ce2329313281f829d3e42b"}}},
	}
}

// summaries are bodies with their expected summaries.
var summaries = map[string]string{
	`{"type":"Cycle","action":"update",` +
		`"data":{"id":"c","updatedAt":"2026-01-01T00:00:00.001Z"},"updatedFrom":{"endsAt":null}}`: "Cycle c, " +
		"at 1767225600001000/1000, rank 1, own, may not advance, before",
	`{"type":"Issue","action":"restore","data":{"id":"i","updatedAt":"2026-01-01T00:00:00.001Z"}}`: "Issue i, " +
		"at 1767225600001000/1000, rank 1, own, may not advance",
	`{"type":"Issue","action":"remove","data":{"id":"i","updatedAt":"2026-01-01T00:00:00.001Z"}}`: "Issue i, " +
		"at 1767225600001000/1000, rank 1, deleted, own, may not advance",
	// A removal without a time makes a refetch pending, and deletes nothing.
	`{"type":"Issue","action":"remove","createdAt":"2026-01-01T00:00:00.001Z","data":{"id":"i"}}`: "Issue i, " +
		"partial: the delete has no time, and the same object can return",
	`{"type":"Reaction","action":"create","data":{"id":"r"}}`: "Reaction r, partial: " +
		"the event has no version and no time, so its order is unknown",
	`{"type":"IssueSLA","action":"breached","issueData":{"id":"i"}}`: "ignored: events of this type are about no " +
		"object that is mirrored",
	`{"type":"AuditEntry","action":"create","data":{"id":"a","updatedAt":"2026-01-01T00:00:00Z"}}`: "ignored: " +
		"an audit entry describes what a user did, not an object that is mirrored",
	`{"type":"AppUserNotification","action":"issueMention","notification":{"id":"n"}}`: "ignored: events of this " +
		"type are about no object that is mirrored",
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// A captured delivery with another id has the same content and version. It is a separate event only
// because the id is unsigned.
func TestIdentify_capturedDelivery_changesNothing(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[1])
	a, was, _ := s.Observed(t, d)
	d.Header.Set("Linear-Delivery", "chosen by an attacker")
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Fatalf("the header is signed, but the documents say that it is not: %v", err)
	}
	b, is, _ := s.Observed(t, d)
	if a.Fingerprint != b.Fingerprint || providertest.Summary(was, nil) != providertest.Summary(is, nil) ||
		!bytes.Equal(was.State.Raw(), is.State.Raw()) {
		t.Errorf("%+v and %+v", a, b)
	}
}

// The signed time is in the body; a header with another time changes nothing.
func TestVerify_time_isReadFromBody(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	d.Header.Set("Linear-Timestamp", "1")
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Error(err)
	}
	d.ReceivedAt = d.ReceivedAt.Add(2 * time.Minute)
	d.Header.Set("Linear-Timestamp", "1783168215250")
	s.CheckRejected(t, s.Source, d, provider.StaleTimestamp)
}

// A removal that did not advance updatedAt cannot be ordered after the state before it, so it is
// ambiguous.
func TestObserve_removalWithOldTime_isAmbiguous(t *testing.T) {
	t.Parallel()
	const at = `"data":{"id":"i","title":"a","updatedAt":"2026-01-01T00:00:00.001Z"}}`
	s := suite()
	var inputs []versioning.Input
	for _, body := range []string{`{"type":"Issue","action":"remove",` + at, `{"type":"Issue","action":"create",` +
		at} {
		_, o, err := s.Observed(t, &provider.Delivery{Header: http.Header{}, Body: []byte(body),
			ReceivedAt: time.Unix(1767312000, 0)})
		if err != nil {
			t.Fatal(err)
		}
		in, err := versioning.InputFromObservation(o, time.Unix(1767312000, 0))
		if err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, in)
	}
	providertest.CheckEnd(t, inputs, true)
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite(), "Linear-Delivery", "Linear-Event") }
