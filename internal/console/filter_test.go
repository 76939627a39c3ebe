package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

// An invalid parameter is named, and the form has all that the operator entered.
func TestFilter_invalidParameter_staysInTheForm(t *testing.T) {
	t.Parallel()
	b := newEnv(t).browser()
	for _, page := range []string{"events", "objects", "rejections", "conflicts", "failures", "outcomes",
		"effects", "audit", "runs/new/replay", "runs/new/retry", "runs/new/reconcile"} {
		path := Prefix + page + "?source=stripe&since=yesterday"
		if page == "audit" { // of all sources
			path = Prefix + page + "?since=yesterday"
		}
		p := b.get(t, path)
		p.want(t, page, http.StatusBadRequest, `since "yesterday"`, "Apply")
		if !strings.Contains(p.body, `name="since" id="i-since" value="yesterday"`) {
			t.Errorf("%s: the form does not have the given time", page)
		}
		if strings.Contains(path, "stripe") && !strings.Contains(p.body, `value="stripe" selected`) {
			t.Errorf("%s: the form does not have the given source", page)
		}
	}
	if p := b.get(t, Prefix+"events?status=ded"); !strings.Contains(p.body, `value="ded" selected`) {
		t.Error("the form does not have the wrong choice")
	}
}

// A control that selects nothing does not offer to select any: that would not say what happens. A
// control that can only narrow a list does not offer the opposite.
func TestRunFilter_switches_nameWhatHappens(t *testing.T) {
	t.Parallel()
	b := newEnv(t).browser()
	for path, want := range map[string]map[string]string{
		"runs/new/replay":    {"mode": "default", "publish": "no", "status": "any", "source": "any"},
		"runs/new/reconcile": {"dry_run": "no", "full": "no", "objects": "default", "all_accounts": "no"},
		"refetches":          {"suspended": "any"}, "objects": {"deleted": "any"},
	} {
		p := b.get(t, Prefix+path)
		for name, unset := range want {
			if !strings.Contains(p.body, `id="i-`+name+`"><option value="">`+unset+`</option>`) {
				t.Errorf("%s: the control %s does not begin with %q", path, name, unset)
			}
		}
		if path == "refetches" && strings.Contains(p.body, `<option value="false">no</option>`) {
			t.Error("refetches: the control offers no, which would select all requests")
		}
	}
}

// The form for an object's state at a time stays too.
func TestObjectAt_invalidTime_staysInTheForm(t *testing.T) {
	t.Parallel()
	p := newEnv(t).browser().get(t, Prefix+"objects/stripe/customer/cus_1/at?time=yesterday&order=occurrence")
	p.want(t, "state at a time", http.StatusBadRequest, `time "yesterday"`, "Show")
	if !strings.Contains(p.body, `value="yesterday"`) || !strings.Contains(p.body, `value="occurrence" selected`) {
		t.Errorf("the form does not have what was given: %s", p.body)
	}
}

// A time can be entered as the pages show it. The address has it with its zone, so that it selects
// the same for an operator in another zone.
func TestFilter_submittedTexts_areTrimmedAndNameTheirZone(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	testkit.Must(t, err)
	newYork, err := time.LoadLocation("America/New_York")
	testkit.Must(t, err)
	for _, c := range []struct {
		zone              *time.Location
		name, given, want string
	}{
		{berlin, "since", "2026-11-28 11:03:39.054", "2026-11-28T11:03:39.054+01:00"},
		{berlin, "until", " 2026-07-28 11:03\n", "2026-07-28T11:03:00+02:00"},
		{berlin, "since", "2026-07-28", "2026-07-28T00:00:00+02:00"},
		{berlin, "time", "00:10:11.5", "2026-11-29T00:10:11.5+01:00"},
		{berlin, "occurred_since", "01:02", "2026-11-28T01:02:00+01:00"},
		{berlin, "since", "2026-10-25 02:30:00", "2026-10-25T02:30:00+02:00"},
		{berlin, "until", "2026-10-25 02:30:00", "2026-10-25T02:30:00+01:00"},
		{newYork, "since", "2026-11-01 01:30", "2026-11-01T01:30:00-04:00"},
		{newYork, "until", "2026-11-01 01:30", "2026-11-01T01:30:00-05:00"},
		{berlin, "since", "15m", "15m"},
		{berlin, "since", "2026-11-28T10:00:00Z", "2026-11-28T10:00:00Z"},
		{berlin, "since", "yesterday", "yesterday"},
		{berlin, "object_id", "  cus_1\t", "cus_1"},
		{berlin, "object_id", "2026-11-28", "2026-11-28"},
		{berlin, "object_id", " ", ""},
		{time.UTC, "since", "2026-11-28 11:03", "2026-11-28T11:03:00Z"},
	} {
		address := Prefix + "events?" + url.Values{c.name: {c.given}, formMark: {"1"}}.Encode()
		r := &request{Request: httptest.NewRequest(http.MethodGet, address, nil), zone: c.zone,
			now: time.Date(2026, 11, 28, 23, 30, 0, 0, time.UTC)}
		want := query(Prefix+"events", c.name, c.want)
		if _, err := r.queryTexts(); err == nil || err.Error() != "the page is at "+want {
			t.Errorf("%s %q: %v, want %s", c.name, c.given, err, want)
		}
	}
	for _, p := range append(operations.Params(operations.EventParams{}),
		operations.Params(operations.ObjectAtParams{})...) {
		if in := inputOf(&p); (in.Suggestions != nil) != slices.Contains(timeParams, p.Name) {
			t.Errorf("timeParams does not say whether %s is a time", p.Name)
		}
	}
}

func TestCommandLine_values_areThoseOfFlags(t *testing.T) {
	t.Parallel()
	for want, texts := range map[string]map[string]string{
		"postern objects list": nil,
		"postern objects list --deleted=false --object-type 'it'\\''s 1' --source shop": {"source": "shop",
			"object_type": "it's 1", "deleted": "false"},
		"postern objects list --ambiguous=true": {"ambiguous": "true"},
		"":                                      {"cursor": "x"},
	} {
		if got := commandLine("objects list", texts); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A command has no cursor, so a later page offers only the request.
func TestList_laterPage_offersNoCommand(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	for _, key := range []string{"evt_1", "evt_2"} {
		e.add(t, thing{key: key, eventType: "customer.updated", body: "{}", status: "applied"})
	}
	first := b.get(t, Prefix+"events?limit=1")
	first.want(t, "first page", http.StatusOK, "as a command and as a request", "postern events list --limit 1")
	for _, link := range first.links() {
		if strings.Contains(link, "cursor=") {
			later := b.get(t, link)
			later.want(t, link, http.StatusOK, "The same as a request", "curl -sS")
			if strings.Contains(later.text(), "postern events list") {
				t.Errorf("a later page has a command: %s", later.text())
			}
			return
		}
	}
	t.Error("the first page has no link to a later one")
}
