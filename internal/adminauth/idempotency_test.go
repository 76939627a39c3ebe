package adminauth_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

type keyEnv struct {
	db       *testkit.DB
	operator *pgxpool.Pool
}

func setupKeys(t *testing.T) *keyEnv {
	t.Helper()
	b := &keyEnv{db: testkit.Database(t)}
	b.operator = b.db.Role(t, "operator")
	b.db.Exec(t, `CREATE TABLE done (n int); GRANT ALL ON done TO postern_operator`)
	return b
}

// advanceClock moves the database's clock.
func (b *keyEnv) advanceClock(t *testing.T, by string) {
	t.Helper()
	b.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT
		clock_timestamp() + interval '`+by+`'$$`)
}

func request(body string) adminauth.KeyedRequest {
	return adminauth.KeyedRequest{Scope: "ada POST /x", Key: "k", Fingerprint: adminauth.Fingerprint([]byte(body))}
}

var response = adminauth.StoredResponse{Status: 200, ContentType: "application/json", Body: []byte("{}\n")}

// execute simulates a request and stores its response in one transaction.
func (b *keyEnv) execute(ctx context.Context, c *adminauth.KeyClaim) error {
	return pgx.BeginFunc(ctx, b.operator, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO postern.done VALUES (1)`); err != nil {
			return err
		}
		return c.StoreResponse(ctx, tx, response)
	})
}

func (b *keyEnv) executions(t *testing.T) string {
	t.Helper()
	return b.db.QueryStrings(t, `SELECT count(*)::text FROM done`)[0]
}

func (b *keyEnv) begin(t *testing.T, r adminauth.KeyedRequest, want error) (*adminauth.KeyClaim,
	*adminauth.StoredResponse) {
	t.Helper()
	c, a, err := adminauth.BeginRequest(t.Context(), b.operator, r)
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("got %v, want %v", err, want)
	}
	return c, a
}

func TestBeginRequest_sameKey_executesOnce(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	c, _ := b.begin(t, request("a"), nil)
	b.begin(t, request("a"), adminauth.ErrInProgress)
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	mustSucceed(t, b.execute(t.Context(), c))
	if err := c.Release(t.Context(), b.operator); err != nil { // it does not delete the response
		t.Fatal(err)
	}
	if _, got := b.begin(t, request("a"), nil); cmp.Diff(&response, got) != "" {
		t.Errorf("response %+v", got)
	}
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	other := request("a")
	other.Scope = "bob POST /x"
	if c, got := b.begin(t, other, nil); c == nil || got != nil {
		t.Errorf("the key of another caller: %+v", got)
	}
	if b.executions(t) != "1" {
		t.Errorf("executed %s times", b.executions(t))
	}
}

// A process that dies between the claim and the end of the transaction has changed nothing. Its key
// is free when the lease ends. A request that lost its key cannot change anything.
func TestBeginRequest_expiredLease_isTakenOver(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	dead, _ := b.begin(t, request("a"), nil)
	b.advanceClock(t, "59 seconds")
	b.begin(t, request("a"), adminauth.ErrInProgress)
	b.advanceClock(t, "61 seconds")
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	next, _ := b.begin(t, request("a"), nil)
	if err := b.execute(t.Context(), dead); !errors.Is(err, adminauth.ErrInProgress) || b.executions(t) != "0" {
		t.Errorf("a request that lost its key: %v, executed %s times", err, b.executions(t))
	}
	if err := dead.Release(t.Context(), b.operator); err != nil { // and does not release the key of the next request
		t.Fatal(err)
	}
	b.begin(t, request("a"), adminauth.ErrInProgress)
	if err := b.execute(t.Context(), next); err != nil || b.executions(t) != "1" {
		t.Errorf("%v, executed %s times", err, b.executions(t))
	}
	if err := b.execute(t.Context(), dead); !errors.Is(err, adminauth.ErrInProgress) || b.executions(t) != "1" {
		t.Errorf("after the next: %v, executed %s times", err, b.executions(t))
	}
}

// A request that takes over a key while the first one is about to commit waits for the commit, and
// gets the response.
func TestBeginRequest_takeoverDuringCommit_returnsResponse(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	c, _ := b.begin(t, request("a"), nil)
	tx, err := b.operator.Begin(t.Context())
	mustSucceed(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	mustSucceed(t, c.StoreResponse(t.Context(), tx, response))
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
	mustSucceed(t, tx.Commit(t.Context()))
	if text := <-got; text != "true <nil>" {
		t.Error(text)
	}
}

func TestRelease_key_isFree(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	c, _ := b.begin(t, request("a"), nil)
	mustSucceed(t, c.Release(t.Context(), b.operator))
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	if c, a := b.begin(t, request("a"), nil); c == nil || a != nil {
		t.Errorf("%+v", a)
	}
}

func TestDeleteExpiredKeys_afterOneDay_areDeleted(t *testing.T) {
	t.Parallel()
	b := setupKeys(t)
	c, _ := b.begin(t, request("a"), nil)
	mustSucceed(t, b.execute(t.Context(), c))
	b.advanceClock(t, "23 hours 59 minutes")
	if n, err := adminauth.DeleteExpiredKeys(t.Context(), b.operator); n != 0 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	b.begin(t, request("b"), adminauth.ErrKeyReused)
	b.advanceClock(t, "24 hours")
	c, a := b.begin(t, request("b"), nil) // also before it is deleted
	if c == nil || a != nil {
		t.Errorf("an expired response: %+v", a)
	}
	b.advanceClock(t, "48 hours 1 minute")
	if n, err := adminauth.DeleteExpiredKeys(t.Context(), b.operator); n != 1 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
}

// must fails the test on an error.
func mustSucceed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
