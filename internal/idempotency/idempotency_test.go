package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Parts cannot run into each other.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	if bytes.Equal(idempotency.Fingerprint([]byte("ab"), []byte("c")), idempotency.Fingerprint([]byte("a"), []byte("bc"))) || bytes.Equal(idempotency.Fingerprint(), idempotency.Fingerprint(nil)) {
		t.Error("two requests look alike")
	}
}

type testBundle struct {
	db       *testkit.DB
	operator *pgxpool.Pool
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t)}
	b.operator = b.db.Role(t, "operator")
	b.db.Exec(t, `CREATE TABLE done (n int); GRANT ALL ON done TO postern_operator`)
	return b
}

// later moves the database's clock.
func (b *testBundle) later(t *testing.T, by string) {
	t.Helper()
	b.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT clock_timestamp() + interval '`+by+`'$$`)
}

func request(body string) idempotency.Request {
	return idempotency.Request{Scope: "ada POST /x", Key: "k", Fingerprint: idempotency.Fingerprint([]byte(body))}
}

var answer = idempotency.Answer{Status: 200, ContentType: "application/json", Body: []byte("{}\n")}

// do is the work of a request, with its answer in one transaction.
func (b *testBundle) do(ctx context.Context, c *idempotency.Claim) error {
	return pgx.BeginFunc(ctx, b.operator, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO postern.done VALUES (1)`); err != nil {
			return err
		}
		return c.Keep(ctx, tx, answer)
	})
}

func (b *testBundle) done(t *testing.T) string {
	t.Helper()
	return b.db.Rows(t, `SELECT count(*)::text FROM done`)[0]
}

func (b *testBundle) begin(t *testing.T, r idempotency.Request, want error) (*idempotency.Claim, *idempotency.Answer) {
	t.Helper()
	c, a, err := idempotency.Begin(t.Context(), b.operator, r)
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("got %v, want %v", err, want)
	}
	return c, a
}

func TestARequestIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, _ := b.begin(t, request("a"), nil)
	b.begin(t, request("a"), idempotency.ErrInFlight)
	b.begin(t, request("b"), idempotency.ErrOther)
	must(t, b.do(t.Context(), c))
	if err := c.Drop(t.Context(), b.operator); err != nil { // it leaves the answer
		t.Fatal(err)
	}
	if _, got := b.begin(t, request("a"), nil); cmp.Diff(&answer, got) != "" {
		t.Errorf("answered %+v", got)
	}
	b.begin(t, request("b"), idempotency.ErrOther)
	other := request("a")
	other.Scope = "bob POST /x"
	if c, got := b.begin(t, other, nil); c == nil || got != nil {
		t.Errorf("another's key: %+v", got)
	}
	if b.done(t) != "1" {
		t.Errorf("done %s times", b.done(t))
	}
}

// A process that dies between the claim and the end of the transaction has done nothing; its key is free when the lease is over, and whoever lost a key cannot do anything any more.
func TestWhoDiesHasDoneNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dead, _ := b.begin(t, request("a"), nil)
	b.later(t, "59 seconds")
	b.begin(t, request("a"), idempotency.ErrInFlight)
	b.later(t, "61 seconds")
	b.begin(t, request("b"), idempotency.ErrOther)
	next, _ := b.begin(t, request("a"), nil)
	if err := b.do(t.Context(), dead); !errors.Is(err, idempotency.ErrInFlight) || b.done(t) != "0" {
		t.Errorf("who had lost the key: %v, done %s times", err, b.done(t))
	}
	if err := dead.Drop(t.Context(), b.operator); err != nil { // and does not take it from the next
		t.Fatal(err)
	}
	b.begin(t, request("a"), idempotency.ErrInFlight)
	if err := b.do(t.Context(), next); err != nil || b.done(t) != "1" {
		t.Errorf("%v, done %s times", err, b.done(t))
	}
	if err := b.do(t.Context(), dead); !errors.Is(err, idempotency.ErrInFlight) || b.done(t) != "1" {
		t.Errorf("after the next: %v, done %s times", err, b.done(t))
	}
}

// Who takes a key over while its first holder is about to commit waits for that, and gets the answer.
func TestTakingOverWhileTheFirstCommits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, _ := b.begin(t, request("a"), nil)
	tx, err := b.operator.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	must(t, c.Keep(t.Context(), tx, answer))
	b.later(t, "61 seconds")
	got := make(chan string, 1)
	go func() {
		_, a, err := idempotency.Begin(t.Context(), b.operator, request("a"))
		got <- fmt.Sprint(a != nil, err)
	}()
	testkit.Eventually(t, 30e9, func() error {
		if n := b.db.Rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, tx.Conn().PgConn().PID()); n[0] != "1" {
			return errors.New("nobody waits")
		}
		return nil
	})
	must(t, tx.Commit(t.Context()))
	if text := <-got; text != "true <nil>" {
		t.Error(text)
	}
}

func TestADroppedKeyIsFree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, _ := b.begin(t, request("a"), nil)
	must(t, c.Drop(t.Context(), b.operator))
	b.begin(t, request("b"), idempotency.ErrOther)
	if c, a := b.begin(t, request("a"), nil); c == nil || a != nil {
		t.Errorf("%+v", a)
	}
}

func TestKeysAreKeptForADay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, _ := b.begin(t, request("a"), nil)
	must(t, b.do(t.Context(), c))
	b.later(t, "23 hours 59 minutes")
	if n, err := idempotency.Sweep(t.Context(), b.operator); n != 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	b.begin(t, request("b"), idempotency.ErrOther)
	b.later(t, "24 hours")
	c, a := b.begin(t, request("b"), nil) // before it is swept, too
	if c == nil || a != nil {
		t.Errorf("an old answer: %+v", a)
	}
	b.later(t, "48 hours 1 minute")
	if n, err := idempotency.Sweep(t.Context(), b.operator); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
}

// must ends the test where there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
