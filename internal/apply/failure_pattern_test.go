package apply_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/apply"
)

func TestFailurePattern_variableParts_areReplaced(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"":                                   "",
		"the body is not JSON":               "the body is not JSON",
		"given up after 9 attempts: no luck": "given up after … attempts: no luck",
		`source "shop" is not in this processor's configuration`: `source "…" is not in this processor's configuration`,
		"a 'b c' of the providers' list":                         "a '…' of the providers' list",
		`unknown field "a\"b" of 'c'`:                            `unknown field "…" of '…'`,
		"invalid character '}' after object key":                 "invalid character '…' after object key",
		"invoice in_1Postern0Jan0001 has no customer":            "invoice in_… has no customer",
		"order 820982911946154508 of my-shop":                    "order … of my-shop",
		"hash 9f86d081884c7d65 differs":                          "hash … differs",
		"id 550e8400-e29b-41d4-a716-446655440000":                "id …",
		"at 2026-01-02T03:04:05.678Z, seen 2026-01-02":           "at …, seen …",
		"no answer from ada.l+x@example.com":                     "no answer from …",
		"dial tcp 10.0.0.7:5432: connection refused":             "dial tcp …: connection refused",
		"took 1.5s, more than 1m0s or 64KiB":                     "took …, more than … or …",
		"position 12,345 of -7":                                  "position … of -…",
		"$.items[3].price: want a number":                        "$.items[…].price: want a number",
		`nothing at "$.items[3].id"`:                             `nothing at "$.items[…].id"`,
		"deadbeef":                                               "deadbeef",
		"a\n  5\ttext":                                           "a\n  …\ttext",
		"“unclosed \"quote 7":                                    "“unclosed \"quote …",
		strings.Repeat("12 ", 3):                                 "… … … ",
	} {
		if got := apply.FailurePattern(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

// Each line has reasons of one cause; different lines are different causes.
func TestFailurePattern_similarReasons_areGroupedByCause(t *testing.T) {
	t.Parallel()
	causes := map[string]int{}
	for i, reasons := range [][]string{
		{"the API responded 404 for in_1Aaaaaa", "the API responded 404 for in_2Bbbbbb"},
		{"the API responded 500 for in_1Aaaaaa", "the API responded 500 for in_99Ccccccc"},
		{"the API responded with status 429 after 31 ms", "the API responded with status 429 after 7 ms"},
		{"the API responded with status 503 after 31 ms", "the API responded with status 503 after 8 ms"},
		{"GET /v1/x: HTTP 502 in 12ms", "GET /v1/x: HTTP 502 in 3s"},
		{"GET /v1/x: HTTP 504 in 12ms"},
		{"value 7 is out of range (SQLSTATE 22003)", "value 12 is out of range (SQLSTATE 22003)"},
		{"value 7 is out of range (SQLSTATE 22008)"},
		{"$.customer.id is missing", "$.customer.id is missing"},
		{"$.customer.name is missing"},
		{`no text at "$.a.b"`},
		{`no text at "$.a.c"`},
		{"address line1 is missing"},
		{"address line2 is missing"},
		{"signature scheme v1 of sha256"},
		{"signature scheme v0 of sha256"},
		{"exit status 1 after 12 s", "exit status 1 after 13 s"},
		{"exit status 2 after 12 s"},
		{"the server answered 4xx"},
		{"the server answered 5xx"},
	} {
		for _, reason := range reasons {
			pattern := apply.FailurePattern(reason)
			if other, ok := causes[pattern]; ok && other != i {
				t.Errorf("%q has the pattern of another cause: %q", reason, pattern)
			}
			causes[pattern] = i
		}
		if len(causes) != i+1 {
			t.Fatalf("%q have %d patterns: %v", reasons, len(causes)-i, causes)
		}
	}
}
