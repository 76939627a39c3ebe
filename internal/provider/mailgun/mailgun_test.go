package mailgun_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/mailgun"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:       mailgun.New(),
		Source:         providertest.Source("mailgun", "mailgun_new", "mailgun_old"),
		InBody:         "signature.signature",
		SignsTime:      true,
		BodyNotCovered: "a time and a random token, but not the event",
		Covered:        []string{"signature.timestamp", "signature.token"},
		// Sign writes the signature into the body, so these bodies change.
		Readable: []string{"two documents", "not UTF-8"},
		NoKey: func(t *testing.T, _ *provider.Source, d *provider.Delivery) {
			d.Body = edited(t, d.Body, func(body map[string]map[string]any) { delete(body["event-data"], "id") })
		},
		Summaries: summaries,
	}
}

const message = `"message":{"headers":{"message-id":"m"}},"recipient":"r"`

// summaries are bodies with their expected summaries.
var summaries = map[string]string{
	`{"event-data":{"id":"e","event":"clicked","timestamp":1767261600.908181,` + message +
		`}}`: "clicked: message m:r, at 1767261600908181/1000, rank 1",
	`{"event-data":{"id":"e","event":"complained","timestamp":1767261600,` + message +
		`}}`: "complained: message m:r, at 1767261600000000/1000000, rank 1",
	`{"event-data":{"id":"e","event":"failed","severity":"permanent","timestamp":1,` + message +
		`}}`: "failed.permanent: message m:r, at 1000000/1000000, rank 1",
	`{"event-data":{"id":"e","event":"delivered",` + message +
		`}}`: "delivered: message m:r, partial: the event has no version and no time, so its order is unknown",
	`{"event-data":{"id":"e","event":"delivered","timestamp":1767261600,"recipient":"r"}}`: "delivered: ignored: the " +
		"event has no object type or id, although events of its type should",
	`{"event-data":{"id":"e","event":"list_member_uploaded","timestamp":1767261600}}`: "list_member_uploaded: " +
		"ignored: events of this type are about no message",
}

func edited(t *testing.T, text []byte, edit func(map[string]map[string]any)) []byte {
	t.Helper()
	var body map[string]map[string]any
	if err := json.Unmarshal(text, &body); err != nil {
		t.Fatal(err)
	}
	edit(body)
	out, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// The signature was made with: printf '1767258000random' | openssl dgst -sha256 -hmac
// mailgun_vector
func TestVerify_vector_isAccepted(t *testing.T) {
	t.Parallel()
	s := suite()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte("mailgun_vector")}}}
	const right = `{"signature":{"timestamp":"1767258000","token":"random",` +
		`"signature":"0a8992f1c8a05feefb176736c6d005f783c8c1da6ca92aecc3e6382c174ac05c"}}`
	d := &provider.Delivery{Body: []byte(right), Header: http.Header{}, ReceivedAt: time.Unix(1767258000, 0)}
	if v, err := s.Provider.Verify(src, d); err != nil || v.SignedAt.Unix() != 1767258000 {
		t.Errorf("%+v, %v", v, err)
	}
	// Time and token are signed without a separator: a digit that moves from one to the other gives
	// another time.
	d.Body = []byte(strings.NewReplacer(`"1767258000"`, `"176725800"`, `"random"`, `"0random"`).Replace(right))
	s.CheckRejected(t, src, d, provider.StaleTimestamp)
	d.Body = []byte(strings.NewReplacer(`"1767258000"`, `"17672580001"`, `"random"`, `"andom"`).Replace(right))
	s.CheckRejected(t, src, d, provider.WrongSignature)
}

// An old signature is rejected. Nothing else prevents its reuse.
func TestVerify_oldSignature_isStale(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	d.Body = edited(t, d.Body, func(body map[string]map[string]any) { body["event-data"]["id"] = "forged" })
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Errorf("the signature covers the event, but the documents say that it does not: %v", err)
	}
	d.ReceivedAt = d.ReceivedAt.Add(provider.DefaultTolerance + time.Second)
	s.CheckRejected(t, s.Source, d, provider.StaleTimestamp)
}

// Each recipient of a message is a separate object.
func TestObserve_recipients_areSeparateObjects(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	_, one, _ := s.Observed(t, d)
	d.Body = bytes.ReplaceAll(d.Body, []byte("ada@shop.example"), []byte("bob@shop.example"))
	_, two, _ := s.Observed(t, d)
	if one.ObjectType != two.ObjectType || one.ObjectID == two.ObjectID ||
		!strings.HasSuffix(two.ObjectID, ":bob@shop.example") {
		t.Errorf("%+v and %+v", one, two)
	}
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
