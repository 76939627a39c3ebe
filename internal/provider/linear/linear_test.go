package linear_test

import (
	"bytes"
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/linear"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/versioning"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: linear.New(),
		Source: &provider.Source{Name: "linear", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("lin_wh_new")}, {Name: "old", Value: []byte("lin_wh_old")}}},
		Signature: "Linear-Signature",
		Dated:     true,
		Unit:      time.Millisecond,
		Tolerance: time.Minute,
		// Signing writes the time into the body, and so these bodies anew.
		Readable: []string{"two documents", "not UTF-8"},
		NoKey:    func(_ *testing.T, _ *provider.Source, d *provider.Delivery) { d.Header.Del("Linear-Delivery") },
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

func TestSamplesInAnyOrder(t *testing.T) {
	t.Parallel()
	providertest.AnyOrder(t, suite())
}

// The signature was made with: printf '{"webhookTimestamp":1767258000123}' | openssl dgst -sha256 -hmac lin_wh_vector
func TestVector(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte("lin_wh_vector")}}}
	d := &provider.Delivery{Body: []byte(`{"webhookTimestamp":1767258000123}`), ReceivedAt: time.Unix(1767258000, 0), Header: http.Header{"Linear-Signature": {"76635ce87cbdfcc5770badb0e338e5594f43a03513ce2329313281f829d3e42b"}}}
	if v, err := linear.New().Verify(src, d); err != nil || v.SignedAt.UnixMilli() != 1767258000123 {
		t.Errorf("%+v, %v", v, err)
	}
}

// A captured delivery under another id says the same at the same version, and is not the same event only because nothing tells.
func TestCapturedDeliverySaysNothingNew(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[1])
	a, was, _ := s.Observed(t, d)
	d.Header.Set("Linear-Delivery", "chosen by a stranger")
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Fatalf("the header is signed after all, and the documents say it is not: %v", err)
	}
	b, is, _ := s.Observed(t, d)
	if a.Fingerprint != b.Fingerprint || providertest.Summary(was, nil) != providertest.Summary(is, nil) || !bytes.Equal(was.State.Raw(), is.State.Raw()) {
		t.Errorf("%+v and %+v", a, b)
	}
}

// The signed time is the body's; a header that tells another changes nothing.
func TestTimeIsTheBodys(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	d.Header.Set("Linear-Timestamp", "1")
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Error(err)
	}
	d.ReceivedAt = d.ReceivedAt.Add(2 * time.Minute)
	d.Header.Set("Linear-Timestamp", "1783168215250")
	s.Refused(t, s.Source, d, provider.StaleTimestamp)
}

func TestWhatEventsSay(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"type":"Cycle","action":"update","data":{"id":"c","updatedAt":"2026-01-01T00:00:00.001Z"},"updatedFrom":{"endsAt":null}}`: "Cycle c, at 1767225600001000/1000, rank 1, own, still, before",
		`{"type":"Issue","action":"restore","data":{"id":"i","updatedAt":"2026-01-01T00:00:00.001Z"}}`:                              "Issue i, at 1767225600001000/1000, rank 1, own, still",
		`{"type":"Issue","action":"remove","data":{"id":"i","updatedAt":"2026-01-01T00:00:00.001Z"}}`:                               "Issue i, at 1767225600001000/1000, rank 1, deleted, own, still",
		// A removal that does not say when is a reason to look, and deletes nothing.
		`{"type":"Issue","action":"remove","createdAt":"2026-01-01T00:00:00.001Z","data":{"id":"i"}}`:  "Issue i, partial: the delete carries no time, and the same object can come back",
		`{"type":"Reaction","action":"create","data":{"id":"r"}}`:                                      "Reaction r, partial: the event carries no version and no time, so it has no place in the order",
		`{"type":"IssueSLA","action":"breached","issueData":{"id":"i"}}`:                               "ignored: events of this type concern no object that is mirrored",
		`{"type":"AuditEntry","action":"create","data":{"id":"a","updatedAt":"2026-01-01T00:00:00Z"}}`: "ignored: an audit entry tells what somebody did, no object that is mirrored",
		`{"type":"AppUserNotification","action":"issueMention","notification":{"id":"n"}}`:             "ignored: events of this type concern no object that is mirrored",
	} {
		s := suite()
		_, o, err := s.Observed(t, &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Unix(1767312000, 0)})
		if got := providertest.Summary(o, err); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
}

// A removal that moved no updatedAt cannot be told from the state before it: that is said, and not guessed.
func TestRemovalAtAnOldTime(t *testing.T) {
	t.Parallel()
	const at = `"data":{"id":"i","title":"a","updatedAt":"2026-01-01T00:00:00.001Z"}}`
	s := suite()
	row := versioning.NewRow()
	for _, body := range []string{`{"type":"Issue","action":"remove",` + at, `{"type":"Issue","action":"create",` + at} {
		_, o, err := s.Observed(t, &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Unix(1767312000, 0)})
		if err != nil {
			t.Fatal(err)
		}
		in, err := versioning.FromObservation(o, time.Unix(1767312000, 0))
		if err != nil {
			t.Fatal(err)
		}
		versioning.Apply(&row, in)
	}
	if !row.Ambiguous || row.LookAfter == 0 {
		t.Errorf("row %+v", row)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range linear.New().Samples() {
		f.Add(s.Body, "id")
	}
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte, id string) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{"Linear-Delivery": {id}, "Linear-Event": {id}}, Body: body})
	})
}
