package adminauth_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/testkit"
)

// The boundary between parts changes the fingerprint.
func TestFingerprint_parts_differ(t *testing.T) {
	t.Parallel()
	if bytes.Equal(adminauth.Fingerprint([]byte("ab"), []byte("c")), adminauth.Fingerprint([]byte("a"),
		[]byte("bc"))) || bytes.Equal(adminauth.Fingerprint(), adminauth.Fingerprint(nil)) {
		t.Error("two requests look alike")
	}
}

func setupKeys(t *testing.T) *testBundle {
	t.Helper()
	b := setup(t)
	b.db.Exec(t, `CREATE TABLE done (n int); GRANT ALL ON done TO postern_operator`)
	return b
}

// advanceClock moves the database's clock.
func (b *testBundle) advanceClock(t *testing.T, by string) {
	t.Helper()
	b.db.ReplaceClock(t, "clock_timestamp() + interval '"+by+"'")
}

func request(body string) adminauth.KeyedRequest {
	return adminauth.KeyedRequest{Scope: "ada POST /x", Key: "k", Fingerprint: adminauth.Fingerprint([]byte(body))}
}

var response = adminauth.StoredResponse{Status: 200, ContentType: "application/json", Body: []byte("{}\n")}

// execute simulates a request and stores its response in one transaction.
func (b *testBundle) execute(ctx context.Context, c *adminauth.KeyClaim) error {
	return pgx.BeginFunc(ctx, b.operator, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO postern.done VALUES (1)`); err != nil {
			return err
		}
		return c.StoreResponse(ctx, tx, response)
	})
}

func (b *testBundle) begin(t *testing.T, r adminauth.KeyedRequest, want error) (*adminauth.KeyClaim,
	*adminauth.StoredResponse) {
	t.Helper()
	c, a, err := adminauth.BeginRequest(t.Context(), b.operator, r)
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("got %v, want %v", err, want)
	}
	return c, a
}

// beginFirst expects that no request has the key.
func (b *testBundle) beginFirst(t *testing.T, r adminauth.KeyedRequest) *adminauth.KeyClaim {
	t.Helper()
	c, stored := b.begin(t, r, nil)
	if c == nil || stored != nil {
		t.Fatalf("the response of an earlier request: %+v", stored)
	}
	return c
}

func TestBeginRequest_sameKey_executesOnce(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	c := b.beginFirst(t, request("a"))
	b.begin(t, request("a"), adminauth.ErrInProgress)
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	testkit.Must(t, b.execute(t.Context(), c))
	testkit.Must(t, c.Release(t.Context(), b.operator)) // it does not delete the response
	_, got := b.begin(t, request("a"), nil)
	testkit.Equal(t, "response", &response, got)
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	other := request("a")
	other.Scope = "bob POST /x"
	b.beginFirst(t, other)
	b.db.WantRows(t, 1, "done")
}

// A process that dies between the claim and the end of the transaction has changed nothing. Its key
// is free when the lease ends. A request that lost its key cannot change anything.
func TestBeginRequest_expiredLease_isTakenOver(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	dead := b.beginFirst(t, request("a"))
	b.advanceClock(t, "59 seconds")
	b.begin(t, request("a"), adminauth.ErrInProgress)
	b.advanceClock(t, "61 seconds")
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	next := b.beginFirst(t, request("a"))
	loses := func(executions int) {
		t.Helper()
		if err := b.execute(t.Context(), dead); !errors.Is(err, adminauth.ErrInProgress) {
			t.Errorf("a request that lost its key: %v", err)
		}
		b.db.WantRows(t, executions, "done")
	}
	loses(0)
	testkit.Must(t, dead.Release(t.Context(), b.operator)) // it does not release the key of the next request
	b.begin(t, request("a"), adminauth.ErrInProgress)
	testkit.Must(t, b.execute(t.Context(), next))
	loses(1)
}

// A request that takes over a key while the first one is about to commit waits for the commit, and
// gets the response.
func TestBeginRequest_takeoverDuringCommit_returnsResponse(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	c := b.beginFirst(t, request("a"))
	tx := testkit.OpenTx(t, b.operator, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	testkit.Must(t, c.StoreResponse(t.Context(), tx, response))
	b.advanceClock(t, "61 seconds")
	got := make(chan string, 1)
	go func() {
		_, a, err := adminauth.BeginRequest(t.Context(), b.operator, request("a"))
		got <- fmt.Sprint(a != nil, err)
	}()
	testkit.Eventually(t, 30e9, func() error {
		if n := b.db.QueryStrings(t,
			`SELECT count(*)::text FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`,
			tx.Conn().PgConn().PID()); n[0] != "1" {
			return errors.New("nobody waits")
		}
		return nil
	})
	testkit.Must(t, tx.Commit(t.Context()))
	if text := <-got; text != "true <nil>" {
		t.Error(text)
	}
}

func TestRelease_key_isFree(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	testkit.Must(t, b.beginFirst(t, request("a")).Release(t.Context(), b.operator))
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	b.beginFirst(t, request("a"))
}

func TestDeleteExpiredKeys_afterOneDay_areDeleted(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	deletes := func(want int64) {
		t.Helper()
		n, err := adminauth.DeleteExpiredKeys(t.Context(), b.operator)
		if testkit.Must(t, err); n != want {
			t.Errorf("deleted %d, want %d", n, want)
		}
	}
	testkit.Must(t, b.execute(t.Context(), b.beginFirst(t, request("a"))))
	b.advanceClock(t, "23 hours 59 minutes")
	deletes(0)
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	b.advanceClock(t, "24 hours")
	b.beginFirst(t, request("b")) // also before it is deleted
	b.advanceClock(t, "48 hours 1 minute")
	deletes(1)
}
