package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/operations"
)

// request is a request of an operator's browser.
type request struct {
	*http.Request
	c    *Console
	who  operator
	zone *time.Location
	now  time.Time
	// nonce is in the policy of the response. Scripts, and attributes of htmx, count only with it.
	nonce string
	// texts are the parameters of the page.
	texts map[string]string
	// filter is the form with these parameters; nil for a page that has none.
	filter *filter
	// badges are how many things wait for an operator, by the address of their page in the menu.
	badges map[string]int64
}

// operator is the person in front of the browser. Without a session it has no name.
type operator struct {
	name string
	role adminauth.Role
	// formToken is in each form of this operator. A foreign web page cannot know it.
	formToken string
}

// mayChange returns why the operator may not make the change of a path of the API, or "". "" stands
// for the path of any other change.
func (r *request) mayChange(path string) string {
	least := admin.LeastRole(http.MethodPost, path)
	switch {
	case r.c.ReadOnly:
		return "This console is read-only (console.read_only)."
	case !r.who.role.Includes(least):
		return "Your token has the role " + string(r.who.role) + ". This needs the role " + string(least) + "."
	}
	return ""
}

// page returns the address of the page in the browser: for a form the page with the form.
func (r *request) page() string {
	if r.Method != http.MethodPost {
		return r.URL.RequestURI()
	}
	return ownPath(r.PostFormValue("page"))
}

// separateApprovals disables the approvals of a page if approvals.separate is set and the operator
// requested one of the causes.
func (r *request) separateApprovals(ctx context.Context, v *view, of operations.Causes) error {
	err := operations.OwnRequest(ctx, r.c.Pages, operations.Requester{Separate: r.c.SeparateApprovals,
		Actor: adminauth.Actor{Name: r.who.name, Via: adminauth.ViaConsole}}, of)
	if !errors.Is(err, adminauth.ErrOwnRequest) {
		return err
	}
	for i := range v.Blocks {
		for j := range v.Blocks[i].Actions {
			a := &v.Blocks[i].Actions[j]
			if admin.LeastRole(http.MethodPost, a.Path) == adminauth.Approver && !strings.HasSuffix(a.Path, "/reject") {
				a.Disabled = sentenceCase(err.Error()) + "."
			}
		}
	}
	return nil
}

// newRequest identifies the operator of a request. The result is never nil. Errors: errNoSession.
func (c *Console) newRequest(w http.ResponseWriter, hr *http.Request) (*request, error) {
	r := &request{Request: hr, c: c, zone: zoneOf(hr), now: c.Now(), nonce: rand.Text()}
	w.Header().Set("Content-Security-Policy", pagePolicy(r.nonce))
	var err error
	r.who, err = c.operatorOf(hr, !isScript(hr))
	return r, err
}

// isScript reports whether a page sends the request without its operator, to be read again or to
// follow events.
func isScript(hr *http.Request) bool { return hr.Header.Get("HX-Request") != "" }

// formToken signs the forms of a session, or of all browsers on this machine.
func formToken(key []byte) string {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte("postern console form")) // a hash never returns an error
	return hex.EncodeToString(h.Sum(nil))
}

const (
	zoneCookie  = "postern_zone"
	themeCookie = "postern_theme"
	keysCookie  = "postern_keys"
)

// zoneOf returns the time zone in which the browser wants times; UTC unless it says otherwise.
func zoneOf(r *http.Request) *time.Location {
	c, err := r.Cookie(zoneCookie)
	if err != nil || len(c.Value) > 64 || c.Value == "Local" {
		return time.UTC
	}
	zone, err := time.LoadLocation(c.Value)
	if err != nil {
		return time.UTC
	}
	return zone
}

// keysOff reports that the browser wants no keys, because other programs use them.
func keysOff(r *http.Request) bool {
	c, err := r.Cookie(keysCookie)
	return err == nil && c.Value == "off"
}

func themeOf(r *http.Request) string {
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return ""
}
