package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestIdentity_sameDatabaseOnly(t *testing.T) {
	t.Parallel()
	one, other := testkit.Database(t), testkit.Database(t)
	id := func(url string) string {
		id, err := postgres.Identity(t.Context(), url)
		if err != nil || id == "" {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	want := id(one.URL)
	if got := id(one.URL + "&application_name=other"); got != want {
		t.Errorf("by another address %s, not %s", got, want)
	}
	if id(other.URL) == want {
		t.Error("two databases have one identity")
	}
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: one.URL, Role: "postern_operator", Identity: want})
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	if _, err := postgres.Connect(t.Context(), postgres.Options{URL: other.URL, Identity: want}); !errors.Is(err, postgres.ErrOtherDatabase) {
		t.Errorf("connect to another database: %v", err)
	}
	if err := postgres.CheckIdentity(t.Context(), other.URL, want); !errors.Is(err, postgres.ErrOtherDatabase) {
		t.Errorf("check another database: %v", err)
	}
	if err := postgres.CheckIdentity(t.Context(), "postgres:///nothing?host=/nowhere", ""); err != nil {
		t.Errorf("no identity is expected: %v", err)
	}
}

// A part that the URL leaves out is filled in from the PG* variables of whoever uses it.
func TestClusterURL_namesEachPart(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t).URL
	for _, part := range []string{"postgres:///", "host=", "port=5432", "user="} {
		if !strings.Contains(url, part) {
			t.Errorf("%s lacks %s", url, part)
		}
	}
}
