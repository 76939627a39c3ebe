package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestVisible_hiddenCharacters_areShownByCode(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"plain – text ü": "plain – text ü",
		"a\u202eb":       "a⟨U+202E⟩b",
		"a\x00b\x1b[1m":  "a⟨U+0000⟩b⟨U+001B⟩[1m",
		"a\r\nb":         "a⟨U+000D⟩\nb",
		"a\xffb":         "a�b",
		"zero\u200bw":    "zero⟨U+200B⟩w",
	} {
		if got := visible(given); got != want {
			t.Errorf("%q: got %q, want %q", given, got, want)
		}
	}
}

func TestDurationText_units_areTheLargest(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]string{0: "0 ms", 999 * time.Millisecond: "999 ms",
		1500 * time.Millisecond: "1.5 s",
		time.Minute:             "1 min", 61 * time.Second: "1 min 1 s", 26 * time.Hour: "26 h",
		72 * time.Hour: "3 days"} {
		if got := durationText(given); got != want {
			t.Errorf("%v: got %q, want %q", given, got, want)
		}
	}
}

func TestQuote_texts_areOneShellWord(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"invoice.paid": "invoice.paid", "": "''", "a b": "'a b'",
		"it's":  `'it'\''s'`,
		"$(id)": "'$(id)'", "a\nb": "'a\nb'", "*": "'*'"} {
		if got := quote(given); got != want {
			t.Errorf("%q: got %s, want %s", given, got, want)
		}
	}
}

func TestNewDocument_largeAndDeepBodies_areCut(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	members := "{" + strings.Repeat(`"k":1,`, 100_000) + `"last":1}`
	for name, c := range map[string]struct {
		body string
		tree bool
		note string
	}{
		"small":        {`{"a":[1,null,"x"]}`, true, ""},
		"long string":  {`{"a":"` + strings.Repeat("x", 2000) + `"}`, true, "first 1,024 characters of a longer text"},
		"deep":         {nested, false, ""},
		"many members": {members, true, "2,000 values"},
		"10 MB":        {`"` + strings.Repeat("x", 10<<20) + `"`, false, "64 KB of 10,485,762 bytes"},
		"no JSON":      {"<xml/>", false, ""},
		"two values":   {`{} {}`, false, ""},
	} {
		d := newDocument([]byte(c.body), "")
		if (d.Root != nil) != c.tree || !strings.Contains(d.Note, c.note) || c.note == "" && d.Note != "" {
			t.Errorf("%s: tree %v, note %q", name, d.Root != nil, d.Note)
		}
		if size := len(fmt.Sprint(d.Text)); size > 2*maxDocumentBytes {
			t.Errorf("%s: shows %d bytes", name, size)
		}
	}
}

// Hours are counted in UTC. In a zone with half hours, they begin at half past.
func TestSecretsBlock_zoneWithHalfHours_namesStartsOfHours(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Asia/Kolkata")
	testkit.Must(t, err)
	r := &request{zone: zone, now: time.Date(2026, 11, 27, 10, 40, 0, 0, time.UTC)}
	hours := make([]int64, activity.SecretHours)
	b := r.secretsBlock(&operations.SourceDetail{SecretUses: []activity.SecretUse{{Secret: "a", Hours: hours},
		{Secret: "b", Hours: hours}}})
	if b.Chart.From != "16:30" || b.Chart.To != "15:30" {
		t.Errorf("from %s to %s", b.Chart.From, b.Chart.To)
	}
}

// After a failure, the console offers to send a form again only if it made the form for this
// session.
func TestProblemView_formOfOtherSession_isNotRepeated(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]int{"mine": 1, "of another session": 0, "": 0} {
		form := url.Values{"form_token": {token}, "path": {"/api/v1/replays"}, "label": {"Replay"}}
		hr := httptest.NewRequest(http.MethodPost, changePath, strings.NewReader(form.Encode()))
		hr.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		testkit.Must(t, hr.ParseForm())
		r := &request{Request: hr, c: &Console{}, who: operator{formToken: "mine"}, zone: time.UTC}
		if v := problemView(r, admin.NewProblem("unavailable", "")); len(v.Blocks) != want {
			t.Errorf("%q: %d forms, want %d", token, len(v.Blocks), want)
		}
	}
}

// The time of storage has only milliseconds. It is not before the receipt for that reason.
func TestEventMoments_sameMillisecond_storedAfterReceipt(t *testing.T) {
	t.Parallel()
	stored := time.Date(2026, 11, 2, 10, 0, 0, 122_000_000, time.UTC)
	e := &events.EventDetail{}
	e.StoredAt, e.ReceivedAt = events.Instant{Time: stored}, events.Instant{Time: stored.Add(700 * time.Microsecond)}
	var labels []string
	for _, m := range eventMoments(nil, e, nil) {
		labels = append(labels, m.label)
	}
	testkit.Equal(t, "moments", []string{"received", "stored"}, labels)
}
