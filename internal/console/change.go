package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/replay"
)

// The fields of a form besides the parameters, whose names begin with paramPrefix.
const (
	paramPrefix = "p."
	emptyPrefix = "empty."
	apiPrefix   = "/api/v1/"
	// changePath gets the forms of all pages.
	changePath = Prefix + "do"
)

// form completes an action: each form has its own idempotency key, so that sending it twice changes
// nothing twice. Inputs get the names under which a form sends parameters.
func (r *request) form(a action) action {
	a.Key = rand.Text()
	a.Inputs = slices.Clone(a.Inputs)
	for i := range a.Inputs {
		a.Inputs[i].Name = paramPrefix + a.Inputs[i].Name
	}
	return a
}

// change sends a form to the API of this process as a request of the operator, and leads to the
// page of the result. The API checks the role, the parameters and the idempotency key, and writes
// the audit.
func (c *Console) change(w http.ResponseWriter, hr *http.Request) {
	r, err := c.newRequest(w, hr)
	if err == nil {
		err = parseForm(r)
	}
	if err == nil {
		err = c.checkForm(r)
	}
	if why := r.mayChange(hr.PostFormValue("path")); err == nil && why != "" {
		err = admin.NewProblem("role", why)
	}
	if err == nil {
		err = checkTyped(r.PostForm)
	}
	if err != nil {
		c.fail(w, r, err)
		return
	}
	// A browser that sends the form again cancels the first request.
	// That must not undo the change.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hr.Context()), changeTimeout)
	defer cancel()
	response, err := c.callAPI(ctx, r)
	if err != nil {
		c.fail(w, r, err)
		return
	}
	c.badges.reset()
	setNotice(w, r, resultNotice(r.PostForm.Get("label"), response), noticeSeconds)
	http.Redirect(w, hr, resultPath(r.PostForm.Get("then"), response), http.StatusSeeOther)
}

// noticeCookie has the result of a change for the next page, which deletes it. After a change that
// needs a login first, the page after the login shows it.
const (
	noticeCookie  = "postern_notice"
	noticeSeconds = 60
	unsentSeconds = 600
	doneText      = "Done: "
)

func setNotice(w http.ResponseWriter, r *request, text string, seconds int) {
	setCookie(w, r.Request, noticeCookie, url.QueryEscape(text), seconds)
}

// reasonText repeats the reason that the operator entered in a form that changed nothing.
func reasonText(r *request) string {
	reason := r.PostFormValue(paramPrefix + "reason")
	if reason == "" {
		return ""
	}
	return " The reason that you entered: " + shorten(reason, 300).Text
}

// repeatAction sends the same form again, with the same idempotency key.
func repeatAction(r *request) action {
	f := r.PostForm
	a := action{Label: f.Get("label"), Text: "The same form, with what you entered. A change that was made already " +
		"is not made again.", Path: f.Get("path"), Then: f.Get("then"), Key: f.Get("key"), Open: true,
		Typed: f.Has("typed")}
	a.Expected, _ = strconv.ParseInt(f.Get("expected"), 10, 64) // a form without a preview has none
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if param, ok := strings.CutPrefix(name, paramPrefix); ok {
			a.Values = append(a.Values, value{param, f.Get(name)})
		} else if param, ok := strings.CutPrefix(name, emptyPrefix); ok {
			a.Empty = append(a.Empty, param)
		}
	}
	return a
}

// resultNotice says what was changed, and what a request about many things did not reach.
func resultNotice(label string, response []byte) string {
	var result struct {
		Verified  *int           `json:"verified"`
		Events    int            `json:"events"`
		Remaining map[string]int `json:"remaining"`
		Next      *string        `json:"next_cursor"`
	}
	text := doneText + shorten(label, 100).Text + "."
	if json.Unmarshal(response, &result) != nil || result.Verified == nil {
		return text
	}
	remaining := 0
	for _, n := range result.Remaining {
		remaining += n
	}
	text += fmt.Sprintf(" Valid deliveries: %d, with %d events. Still rejected: %d.", *result.Verified, result.Events,
		remaining)
	if result.Next != nil {
		text += " The time limit was reached: repeat it for the rest."
	}
	return text
}

// changeTimeout limits a change, longer than the API does.
const changeTimeout = 40 * time.Second

// parseForm reads a form. Errors: *admin.Problem.
func parseForm(r *request) error {
	if err := r.ParseForm(); err != nil {
		return admin.NewProblem("invalid", "The form cannot be read: "+err.Error()+".")
	}
	return nil
}

// typedFrom is the number of events from which the operator must type the number that a preview
// showed.
const typedFrom = 1001

// checkTyped requires the typed number for a replay or a retry of many events, and for a replay
// that repeats effects. A selection without a preview must name its events, and a form for selected
// things one of them. Errors: *admin.Problem.
func checkTyped(form url.Values) error {
	if form.Has("selection") && form.Get(paramPrefix+"ids") == "" {
		return admin.NewProblem("invalid", "Nothing is selected, so nothing was changed. Go back, and check the box "+
			"of at least one row.")
	}
	if p := form.Get("path"); p != replaysPath && p != retriesPath {
		return nil
	}
	expected := form.Get("expected")
	n, err := strconv.ParseInt(expected, 10, 64)
	if ids := form.Get(paramPrefix + "ids"); err != nil && (ids != "" || form.Get(paramPrefix+"event") != "") {
		n, err = int64(strings.Count(ids, ",")+1), nil
	}
	if err != nil {
		return admin.NewProblem("invalid", "The form has no number of events. Open the preview of the run and start "+
			"it there.")
	}
	if n < typedFrom && form.Get(paramPrefix+"mode") != string(replay.Force) {
		return nil
	}
	digits := func(c rune) rune {
		if c == ',' || c == ' ' || c == '.' || c == '\'' {
			return -1
		}
		return c
	}
	if typed := strings.Map(digits, form.Get("typed")); typed == "" || typed != strconv.FormatInt(n, 10) {
		return admin.NewProblem("invalid", "The typed number is not the number of events in the preview, which is "+
			groupDigits(n)+". Nothing was started. Go back, and type "+groupDigits(n)+" if you want to start the run.")
	}
	return nil
}

const (
	replaysPath = apiPrefix + "replays"
	retriesPath = apiPrefix + "retries"
)

// callAPI executes the request of a form. Errors: *admin.Problem.
func (c *Console) callAPI(ctx context.Context, r *request) ([]byte, error) {
	target := r.PostForm.Get("path")
	if !isAPIPath(target) {
		return nil, admin.NewProblem("invalid", "The form names no path of the API.")
	}
	params := map[string]string{}
	for name, given := range r.PostForm {
		if param, ok := strings.CutPrefix(name, paramPrefix); ok && given[0] != "" {
			params[param] = strings.Join(given, ",") // several of checkboxes
		} else if param, ok := strings.CutPrefix(name, emptyPrefix); ok {
			params[param] = ""
		}
	}
	return c.request(ctx, r, http.MethodPost, target, params, r.PostForm.Get("key"))
}

// readAPI reads what only the API of this process can tell: its policy, its connections, and dry
// runs, of which it executes one at a time. Errors: *admin.Problem.
func readAPI[T any](ctx context.Context, r *request, method, path string, params map[string]string) (*T, error) {
	response, err := r.c.request(ctx, r, method, path, params, "")
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := json.Unmarshal(response, out); err != nil {
		return nil, fmt.Errorf("read the response of %s: %w", path, err)
	}
	return out, nil
}

// request sends a request of the operator to the API of this process. Errors: *admin.Problem.
func (c *Console) request(ctx context.Context, r *request, method, path string, params map[string]string,
	key string) ([]byte, error) {
	var body io.Reader
	if method == http.MethodPost {
		b, err := json.Marshal(params)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	call, err := http.NewRequestWithContext(admin.WithConsoleCaller(ctx, r.who.name, r.who.role), method, path, body)
	if err != nil {
		return nil, err
	}
	call.Host, call.RemoteAddr = r.Host, r.RemoteAddr
	call.Header.Set("Content-Type", "application/json")
	if key != "" {
		call.Header.Set(idempotency.Header, key)
	}
	recorder := httptest.NewRecorder()
	c.API.ServeHTTP(recorder, call)
	if recorder.Code == http.StatusOK {
		return recorder.Body.Bytes(), nil
	}
	var p admin.Problem
	if err := json.Unmarshal(recorder.Body.Bytes(), &p); err != nil {
		return nil, err
	}
	return nil, &p
}

// isAPIPath reports whether an address is a path of the API and nothing else, and is the same path
// for each program that reads it.
func isAPIPath(address string) bool {
	u, err := url.Parse(address)
	return err == nil && strings.HasPrefix(address, apiPrefix) && u.RequestURI() == address && u.RawQuery == "" &&
		!u.ForceQuery && !strings.ContainsAny(address, `\#`) && !hasDotSegments(u.Path) &&
		strings.Count(u.Path, "/") == strings.Count(address, "/")
}

// resultPath returns the page after a change. A name in braces stands for that member of the
// response.
func resultPath(then string, response []byte) string {
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(response))
	d.UseNumber()
	_ = d.Decode(&members) // a response without members has no names to fill in
	for _, name := range slices.Sorted(maps.Keys(members)) {
		switch v := members[name].(type) {
		case string:
			then = strings.ReplaceAll(then, "{"+name+"}", url.PathEscape(v))
		case json.Number:
			then = strings.ReplaceAll(then, "{"+name+"}", v.String())
		}
	}
	return ownPath(then)
}

func equalText(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
