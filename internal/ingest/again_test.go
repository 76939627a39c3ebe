package ingest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// me is who releases.
var me = audit.Person{Name: "me", Via: audit.Command}

// rejection is the only one that is kept, and when.
func (b *testBundle) rejection(t *testing.T) (r *ingest.RejectedDetail) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (err error) {
		var id int64
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT id FROM rejections`).Scan(&id); err != nil {
			return err
		}
		r, err = ingest.ShowRejection(t.Context(), b.db.Pool, id)
		return err
	})
	return r
}

// withSecret is a source with a further secret.
func (b *testBundle) withSecret(source string, value []byte) ingest.Endpoint {
	ep := sources()[source] // as b.endpoints has it, but nothing shared with the server
	ep.Number = b.endpoints[source].Number
	ep.Config.Secrets = append(ep.Config.Secrets, provider.Secret{Name: "new", Value: value})
	return ep
}

const storedSQL = `SELECT (to_jsonb(e) - 'id' - 'delivery_id' - 'verification' - 'source')::text FROM events e`

// A delivery that was signed with a secret which was given later is proven as of its time of receipt, and released into the log as it would have been taken.
func TestReleaseIsWhatTheDoorWouldHaveStored(t *testing.T) {
	t.Parallel()
	const secret = "whsec_given_later"
	b := setup(t, nil)
	d := b.sample(t, "stripe", "invoice.paid", 1)
	b.endpoints = map[string]ingest.Endpoint{"stripe": b.withSecret("stripe", []byte(secret))}
	other := *b.endpoints["stripe"].Config
	other.Secrets = other.Secrets[1:]
	signed, err := b.endpoints["stripe"].Provider.Sign(&other, d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b.post(t, "stripe", signed).refused(t, 401, "unauthenticated")
	r := b.rejection(t)
	unchanged := ingest.Check(ingest.Endpoint{Provider: b.endpoints["stripe"].Provider, Config: sources()["stripe"].Config}, r)
	if unchanged.Proven || !strings.HasPrefix(unchanged.Now, "still refused: wrong_signature") {
		t.Errorf("%+v", unchanged)
	}
	gateway := b.db.Role(t, "gateway")
	if _, err := ingest.Release(t.Context(), gateway, &unchanged, me, "x"); !errors.Is(err, events.ErrInvalid) {
		t.Error(err)
	}
	late := *r
	late.ReceivedAt.Time = r.ReceivedAt.Add(time.Hour) // judged against the time of receipt, whenever that is looked at
	if c := ingest.Check(b.endpoints["stripe"], &late); c.Proven || !strings.Contains(c.Now, "stale_timestamp") {
		t.Errorf("%+v", c)
	}
	cut := *r
	cut.Cut = true
	if c := ingest.Check(b.endpoints["stripe"], &cut); c.Proven || !strings.Contains(c.Now, "bytes of the body were kept") {
		t.Errorf("%+v", c)
	}
	c := ingest.Check(b.endpoints["stripe"], r)
	if !c.Proven || c.Now != `proven by secret "new" (stripe-v1)` || len(c.Events) != 1 || c.Events[0].EventType != "invoice.paid" {
		t.Fatalf("%+v", c)
	}
	receipts, err := ingest.Release(t.Context(), gateway, &c, audit.Person{Name: "ada@office", Via: audit.Command}, "the secret was new")
	if err != nil || len(receipts) != 1 || receipts[0].Duplicate {
		t.Fatal(receipts, err)
	}
	if n := b.count(t, `SELECT count(*) FROM rejections`); n != 0 {
		t.Errorf("%d rejections are left", n)
	}
	released := b.stored(t, receipts[0].ID)
	// The same delivery, let in by the door of a server that has the secret.
	twin := setup(t, func(o *ingest.Options) {
		o.Endpoints["stripe"].Config.Secrets[0].Value = []byte(secret)
		o.Now = func() time.Time { return r.ReceivedAt.Time }
	})
	receipt := twin.post(t, "stripe", signed).receipt(t)
	id, _ := events.ParseID(receipt.ID)
	if diff := cmp.Diff(twin.stored(t, id), released); diff != "" {
		t.Errorf("the door stores otherwise: %s", diff)
	}
	var proof map[string]string
	var raw json.RawMessage
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT verification FROM events`).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &proof); err != nil || proof["secret"] != "new" || proof["released_by"] != "ada@office" || proof["released_because"] != "the secret was new" ||
		proof["rejection"] != fmt.Sprint(r.ID) || proof["signed_at"] == "" {
		t.Errorf("%s %v", raw, err)
	}
}

func (b *testBundle) stored(t *testing.T, id int64) (row string) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), storedSQL+` WHERE id = $1`, id).Scan(&row); err != nil {
		t.Fatal(err)
	}
	return row
}

// Ended between the append and the forgetting, a release that is repeated finds the event and forgets the rejection.
func TestReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	order := b.sign(t, "shop", b.sample(t, "shop", "orders/create", 1))
	order.Header.Set("X-Shopify-Shop-Domain", "other.myshopify.com")
	b.post(t, "shop", order).refused(t, 401, "unauthenticated")
	r := b.rejection(t)
	ep := b.withSecret("shop", []byte("another"))
	ep.Config.Account = "other.myshopify.com"
	c := ingest.Check(ep, r)
	if !c.Proven {
		t.Fatalf("%+v", c)
	}
	if _, err := b.db.Pool.Exec(t.Context(), `CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
CREATE CONSTRAINT TRIGGER never AFTER DELETE ON rejections DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION never()`); err != nil {
		t.Fatal(err)
	}
	gateway := b.db.Role(t, "gateway")
	if _, err := ingest.Release(t.Context(), gateway, &c, me, "x"); err == nil || !strings.Contains(err.Error(), "release it again") {
		t.Fatal(err)
	}
	if _, err := b.db.Pool.Exec(t.Context(), `DROP TRIGGER never ON rejections`); err != nil {
		t.Fatal(err)
	}
	receipts, err := ingest.Release(t.Context(), gateway, &c, me, "x")
	if err != nil || !receipts[0].Duplicate || receipts[0].Conflict {
		t.Errorf("%+v %v", receipts, err)
	}
	if n, left := b.count(t, `SELECT count(*) FROM events`), b.count(t, `SELECT count(*) FROM rejections`); n != 1 || left != 0 {
		t.Errorf("%d events, %d rejections", n, left)
	}
	if _, err := ingest.Release(t.Context(), gateway, &c, me, "x"); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("released a third time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ingest.Release(ctx, gateway, &c, me, "x"); err == nil {
		t.Error("released without a database")
	}
}

// A redaction that comes between the check and the release has taken the body away: the log gets nothing of it. One that comes while it is released waits until the log has it.
func TestReleaseBesideARedaction(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	kept := func(n int) *ingest.Checked {
		t.Helper()
		order := b.sign(t, "shop", b.sample(t, "shop", "orders/create", n))
		order.Header.Set("X-Shopify-Shop-Domain", "other.myshopify.com")
		b.post(t, "shop", order).refused(t, 401, "unauthenticated")
		ep := b.withSecret("shop", []byte("another"))
		ep.Config.Account = "other.myshopify.com"
		c := ingest.Check(ep, b.rejection(t))
		if !c.Proven {
			t.Fatalf("%+v", c)
		}
		return &c
	}
	gateway := b.db.Role(t, "gateway")
	gone := kept(1)
	if _, err := b.db.Pool.Exec(t.Context(), `DELETE FROM rejections WHERE id = $1`, gone.ID); err != nil {
		t.Fatal(err)
	}
	if receipts, err := ingest.Release(t.Context(), gateway, gone, me, "x"); !errors.Is(err, events.ErrNotFound) || receipts != nil {
		t.Errorf("%v, %v", receipts, err)
	}
	if n := b.count(t, `SELECT count(*) FROM events`); n != 0 {
		t.Errorf("%d events are stored", n)
	}
	c := kept(2)
	release := b.hold(t)
	released := make(chan error, 1)
	go func() {
		_, err := ingest.Release(t.Context(), gateway, c, me, "x")
		released <- err
	}()
	b.blocked(t, 1)
	looked := make(chan error, 1)
	go func() {
		var stored int
		_, err := b.db.Pool.Exec(t.Context(), `DELETE FROM rejections WHERE id = $1`, c.ID)
		if err == nil {
			err = b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&stored)
		}
		if err == nil && stored == 0 {
			err = errors.New("the rejection is gone, and the log has nothing of it yet")
		}
		looked <- err
	}()
	b.blocked(t, 2)
	release()
	if err := errors.Join(<-released, <-looked); err != nil {
		t.Error(err)
	}
}

// A provider that faults, and a greeting, are told and not released.
func TestCheckTellsWhatCannotBeReleased(t *testing.T) {
	t.Parallel()
	r := &ingest.RejectedDetail{Rejected: ingest.Rejected{Bytes: 2}, Headers: []byte(`{}`), Content: events.MakeContent([]byte(`{}`))}
	for source, says := range map[string]string{"panic": "a fault of ours", "stripe": "still refused: missing_signature"} {
		ep := sources()[source]
		if c := ingest.Check(ep, r); c.Proven || !strings.Contains(c.Now, says) {
			t.Errorf("%s: %+v", source, c)
		}
	}
	r.Content, r.Headers = events.MakeContent([]byte("ping")), []byte(`{"Sim-Signature": "signed by the simulated provider"}`)
	if c := ingest.Check(sources()["polite"], r); c.Proven || !strings.Contains(c.Now, "a greeting and no event") {
		t.Errorf("%+v", c)
	}
	r.Headers = []byte(`[]`)
	if c := ingest.Check(sources()["stripe"], r); c.Proven || !strings.Contains(c.Now, "kept headers") {
		t.Errorf("%+v", c)
	}
}
