package adminauth_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type testBundle struct {
	db       *testkit.DB
	operator *pgxpool.Pool
	cache    *adminauth.TokenCache
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t)}
	b.operator = b.db.Role(t, "operator")
	b.cache = &adminauth.TokenCache{DB: b.operator, Logger: testkit.Logger(t)}
	return b
}

func (b *testBundle) create(t *testing.T, name string, role adminauth.Role, expires time.Time) string {
	t.Helper()
	secret, _, err := adminauth.CreateToken(t.Context(), b.operator, name, role, "ada", expires)
	testkit.Must(t, err)
	return secret
}

// revoke revokes the token one.
func (b *testBundle) revoke(t *testing.T) *adminauth.Token {
	t.Helper()
	revoked, err := adminauth.RevokeToken(t.Context(), b.operator, "one")
	testkit.Must(t, err)
	return revoked
}

// accepts expects that the cache accepts a token.
func (b *testBundle) accepts(t *testing.T, secret string) {
	t.Helper()
	_, _, err := b.cache.Check(t.Context(), secret)
	testkit.Must(t, err)
}

// rejects expects that the cache does not know a token.
func (b *testBundle) rejects(t *testing.T, secret string) {
	t.Helper()
	if _, _, err := b.cache.Check(t.Context(), secret); !errors.Is(err, adminauth.ErrUnknownToken) {
		t.Errorf("%q: %v", secret, err)
	}
}

// check uses a new cache without any tokens.
func (b *testBundle) check(t *testing.T, secret string) (string, adminauth.Role, error) {
	return (&adminauth.TokenCache{DB: b.operator}).Check(t.Context(), secret)
}

func TestTokenCache_token_returnsNameAndRole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	reader, operator := b.create(t, "grafana", adminauth.Reader, time.Time{}), b.create(t, "deploy", adminauth.Operator,
		time.Now().Add(time.Hour))
	for secret, want := range map[string]string{reader: "grafana reader", operator: "deploy operator"} {
		name, role, err := b.cache.Check(t.Context(), secret)
		if got := fmt.Sprint(name, " ", role); err != nil || got != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	for _, wrong := range []string{"", "postern_", reader[:len(reader)-1], reader + "A", strings.ToLower(reader),
		"x" + reader, reader[:len(reader)-1] + "!"} {
		b.rejects(t, wrong)
	}
	if !regexp.MustCompile(`^postern_[A-Z2-7]{52}$`).MatchString(reader) || reader == operator {
		t.Errorf("a token is %s", reader)
	}
}

// A dump of the database contains no token.
func TestCreateToken_secret_isNotStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := b.create(t, "one", adminauth.Reader, time.Time{})
	b.accepts(t, secret)
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "--data-only", "--dbname", b.db.URL).Output()
	testkit.Must(t, err)
	sum := sha256.Sum256([]byte(secret))
	if strings.Contains(string(dump), secret[8:20]) || !strings.Contains(string(dump), hex.EncodeToString(sum[:])) {
		t.Error("the dump holds a token, or not its digest")
	}
}

func TestRevokeToken_isRejected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := b.create(t, "one", adminauth.Operator, time.Time{})
	b.accepts(t, secret)
	revoked := b.revoke(t)
	if revoked.InForce || revoked.RevokedAt.IsZero() || revoked.UsedOn != time.Now().UTC().Format(time.DateOnly) {
		t.Errorf("%+v", revoked)
	}
	testkit.Equal(t, "time of the first revocation", revoked.RevokedAt, b.revoke(t).RevokedAt)
	if _, _, err := b.check(t, secret); !errors.Is(err, adminauth.ErrUnknownToken) {
		t.Errorf("a new process takes a revoked token: %v", err)
	}
	testkit.Eventually(t, 30*time.Second, func() error { // access.MaxStaleness
		if _, _, err := b.cache.Check(t.Context(), secret); !errors.Is(err, adminauth.ErrUnknownToken) {
			return fmt.Errorf("a process that knew it still takes it: %v", err)
		}
		return nil
	})
	if _, err := adminauth.RevokeToken(t.Context(), b.operator, "nobody"); err == nil {
		t.Error("Revoke accepts a token that does not exist")
	}
}

// A token can be used as soon as it is created, and wrong ones cost few reads.
func TestTokenCache_newToken_isAcceptedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	counting, now := &countingDB{DB: b.operator}, time.Now()
	b.cache.DB, b.cache.Now = counting, func() time.Time { return now }
	for range 10 {
		b.rejects(t, "postern_"+strings.Repeat("A", 52))
	}
	if n := counting.n.Load(); n != 1 {
		t.Errorf("%d reads for wrong tokens at one time", n)
	}
	secret := b.create(t, "new", adminauth.Reader, time.Time{})
	now = now.Add(time.Second)
	if name, _, err := b.cache.Check(t.Context(), secret); name != "new" {
		t.Errorf("a new token is %q, %v", name, err)
	}
}

// An expired token is rejected immediately, also if it is cached.
func TestTokenCache_expiredToken_isRejected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := time.Now().Add(time.Hour)
	secret := b.create(t, "short", adminauth.Reader, end)
	now := end.Add(-time.Second)
	b.cache.Now = func() time.Time { return now }
	b.accepts(t, secret)
	b.db.Exec(t, `ALTER TABLE tokens RENAME TO elsewhere`) // the cache is up to date, so it does not read again
	now = end
	b.rejects(t, secret)
}

func TestCreateToken_wrongValues_areRejected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.create(t, "one", adminauth.Reader, time.Time{})
	b.revoke(t)
	for _, tc := range []struct {
		name, role, want string
		expires          time.Time
	}{
		{"one", "reader", "a token one exists or existed", time.Time{}},
		{"", "reader", "write lower case", time.Time{}},
		{"Two", "reader", "write lower case", time.Time{}},
		{"two", "", "write reader, approver, operator or operator,approver", time.Time{}},
		{"two", "root", "write reader, approver, operator or operator,approver", time.Time{}},
		{"two", "reader", "is in the past", time.Now().Add(-time.Second)},
	} {
		if _, _, err := adminauth.CreateToken(t.Context(), b.operator, tc.name, adminauth.Role(tc.role), "ada",
			tc.expires); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	b.db.Exec(t, `INSERT INTO tokens (name, role, digest, created_by)
		SELECT 'n' || n, 'reader', sha256(n::text::bytea), ''
		FROM generate_series(1, 1000) n`)
	if _, _, err := adminauth.CreateToken(t.Context(), b.operator, "more", adminauth.Reader, "ada",
		time.Time{}); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "revoke some first") {
		t.Errorf("one too many: %v", err)
	}
	page, err := adminauth.ListTokens(t.Context(), b.operator, "", 0)
	if err != nil || len(page.Items) != events.DefaultLimit || page.Next == "" {
		t.Errorf("%d listed, %v", len(page.Items), err)
	}
}

// Without the database every caller is rejected, because a cached token may be revoked.
func TestTokenCache_databaseUnavailable_rejectsAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := b.create(t, "one", adminauth.Reader, time.Time{})
	b.db.Exec(t, `ALTER TABLE tokens RENAME TO elsewhere`)
	if _, _, err := b.check(t, secret); err == nil || errors.Is(err, adminauth.ErrUnknownToken) {
		t.Errorf("accepted, or reported as unknown: %v", err)
	}
}

// While the database is stalled, waiting callers share one read.
func TestTokenCache_stalledDatabase_isReadOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := b.create(t, "one", adminauth.Reader, time.Time{})
	testkit.OpenTx(t, b.db.Pool, `LOCK TABLE tokens`)
	counting := &countingDB{DB: b.operator}
	b.cache.DB = counting
	now := time.Now()
	// each read takes 2 s
	b.cache.Now = func() time.Time { return now.Add(time.Duration(counting.n.Load()) * 2 * time.Second) }
	for range 10 {
		if _, _, err := b.cache.Check(t.Context(), secret); err == nil || errors.Is(err, adminauth.ErrUnknownToken) {
			t.Errorf("%v", err)
		}
	}
	if n := counting.n.Load(); n != 1 {
		t.Errorf("%d queries, want 1", n)
	}
}

// countingDB counts the queries of a cache.
type countingDB struct {
	postgres.DB
	n atomic.Int64
}

func (c *countingDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	defer c.n.Add(1)
	return c.DB.Query(ctx, sql, args...)
}

// The day of last use is written once, whatever the number of requests. Wrong tokens cause no
// query.
func TestTokenCache_use_isRecordedDaily(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := b.create(t, "one", adminauth.Reader, time.Time{})
	b.db.Exec(t, `CREATE TABLE writes (n int); GRANT INSERT ON writes TO postern_operator;
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN INSERT INTO postern.writes VALUES (1); RETURN NEW; END';
		CREATE TRIGGER note BEFORE UPDATE ON tokens FOR EACH ROW EXECUTE FUNCTION note()`)
	for range 50 {
		b.accepts(t, secret)
	}
	b.db.WantRows(t, 1, "writes")
}
