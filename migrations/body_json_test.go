package migrations_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestBodyJSON_numbersThatExpand_areOmitted(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	many := func(number string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(number+",", 20_000), ",") + "]"
	}
	tests := map[string]struct {
		body string
		json bool
	}{
		"20,000 of 1e100000":           {many("1e100000"), false},
		"20,000 of 1e-16000":           {many("1e-16000"), false},
		"an exponent of 301":           {`{"a":1e301}`, false},
		"an exponent of 300":           {`{"a":[1E+300,-2e-0300]}`, true},
		"beside such a text":           {`{"\"e": "1e999", "b":1e999}`, false},
		"a text, and a key, like that": {`{"a9e9999": "f1e100000\\", "b": "\"1e9999", "c": 1}`, true},
		"no JSON":                      {`a=1e999`, false},
		"NUL in a text":                {`{"a":"\u0000"}`, false},
	}
	for name, tt := range tests {
		start := time.Now()
		var is bool
		err := db.Pool.QueryRow(t.Context(), `SELECT coalesce(length(body_json($1)::text) > 0, false)`, []byte(tt.body)).Scan(&is)
		if err != nil || is != tt.json {
			t.Errorf("%s: JSON %t, want %t (%v, after %s)", name, is, tt.json, err, time.Since(start))
		}
	}
	if _, err := db.Pool.Exec(t.Context(), `SELECT body_json, body_json_omitted FROM mirror.events`); err != nil {
		t.Error(err)
	}
}
