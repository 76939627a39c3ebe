// Package console serves the web console of operators: pages that the server renders from the
// operations that the JSON API and the commands use too. A change is a form, which the console
// sends to the API of its own process in the operator's name. Pages work without script.
package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/gzhttp"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/retention"
)

// Prefix is the path below which everything of the console is.
const Prefix = "/console/"

// PageTimeout limits the time in which a page is read from the database.
const PageTimeout = 10 * time.Second

// Options configure the console.
type Options struct {
	// Pages is a pool for reading pages and Sessions one for sessions, both connected as
	// postern_operator.
	Pages, Sessions *pgxpool.Pool
	// API is the admin API of this process. It executes the changes.
	API http.Handler
	// Tokens checks the tokens of logins.
	Tokens admin.Checker
	// DeniedRequests counts failed logins; nil: they are not counted.
	DeniedRequests *admin.DeniedRequests
	// Follower follows the log for the live list of events.
	Follower *operations.Follower
	// RequireTokens: a page is only served after a login.
	RequireTokens bool
	// ReadOnly: no page offers a change, and none is executed.
	ReadOnly bool
	// SeparateApprovals: an operator may not approve what he requested.
	SeparateApprovals bool
	// Hosts are the host names by which browsers may reach the console, besides loopback names and
	// IP addresses.
	Hosts []string
	// RejectionsMaxCount is how many rejected deliveries a source keeps in this process.
	RejectionsMaxCount int64
	// Retention is the policy of this process.
	Retention retention.Policy
	// Endpoints returns the configured sources; nil in a process without sources.
	Endpoints func() []config.Endpoint
	// Rules returns the configured effect rules; nil in a process without rules.
	Rules func() []*rules.Rule
	// Name is shown on every page, to tell instances apart; it may be empty.
	Name string
	// Version is the version of the program.
	Version string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Logger gets the errors of pages; nil: nothing is logged.
	Logger *slog.Logger
}

// Console is the handler of everything below Prefix.
type Console struct {
	Options
	templates *template.Template
	logins    *loginLimiter
	rates     runRates
	badges    badges
	recent    recentSessions
	// formKey signs the forms of browsers without a session.
	formKey []byte
	handler http.Handler
}

// New builds the console.
func New(o Options) (*Console, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Console{Options: o, formKey: make([]byte, 32), logins: newLoginLimiter(o.Now)}
	c.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	_, _ = rand.Read(c.formKey) // never returns an error
	files, err := newAssets()
	if err != nil {
		return nil, err
	}
	if c.templates, err = parseTemplates(files); err != nil {
		return nil, err
	}
	compress, err := gzhttp.NewWrapper(gzhttp.ContentTypes([]string{"text/html"}), gzhttp.RandomJitter(32, 0, false))
	if err != nil {
		return nil, fmt.Errorf("compress pages: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+Prefix+"assets/{file}", files)
	c.addSessionRoutes(mux)
	mux.HandleFunc("GET "+Prefix+"events/tail", c.tail)
	for path, page := range c.pages() {
		mux.Handle("GET "+Prefix+path, c.serve(page))
	}
	mux.Handle("POST "+changePath, http.HandlerFunc(c.change))
	mux.Handle("GET "+Prefix, c.serve(notFound))
	c.handler = c.secure(compress(mux))
	return c, nil
}

// endpoints returns the configured sources. It is nil in a process without sources.
func (c *Console) endpoints() []config.Endpoint {
	if c.Endpoints == nil {
		return nil
	}
	return append([]config.Endpoint{}, c.Endpoints()...)
}

func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// page reads what a page shows.
type page func(ctx context.Context, r *request) (*view, error)

// withParams returns a page that rejects all parameters except the named ones.
func withParams(p page, names ...string) page {
	return func(ctx context.Context, r *request) (*view, error) {
		for _, name := range slices.Sorted(maps.Keys(r.texts)) {
			if slices.Contains(names, name) {
				continue
			}
			known := "The page has no parameters."
			if len(names) > 0 {
				known = "The parameters are " + strings.Join(names, ", ") + "."
			}
			return nil, admin.NewProblem("invalid", "The parameter "+visible(name)+" does not exist. "+known)
		}
		return p(ctx, r)
	}
}

// redirectError is the result of a page that is at another path.
type redirectError struct{ to string }

func (e *redirectError) Error() string { return "the page is at " + e.to }

// serve identifies the operator, reads a page and writes it.
func (c *Console) serve(p page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		start := c.Now()
		r, err := c.newRequest(w, hr)
		if err == nil {
			err = checkAddress(hr.URL)
		}
		if err == nil {
			r.texts, err = r.queryTexts()
		}
		if err == nil {
			ctx, cancel := context.WithTimeout(hr.Context(), PageTimeout)
			defer cancel()
			var v *view
			if v, err = p(ctx, r); err == nil {
				r.badges = c.countBadges(ctx)
				w.Header().Set("Server-Timing", fmt.Sprintf("page;dur=%d", c.Now().Sub(start).Milliseconds()))
				c.render(w, r, http.StatusOK, v)
				return
			}
		}
		c.fail(w, r, err)
	})
}

// checkAddress returns an error for an address with a text that the database cannot compare.
func checkAddress(u *url.URL) error {
	if err := operations.CheckStorable("the path", u.Path); err != nil {
		return err
	}
	for _, given := range u.Query() {
		for _, text := range given {
			if err := operations.CheckStorable("a parameter", text); err != nil {
				return err
			}
		}
	}
	return nil
}

// fail writes the page of an error: what happened, and what to do next.
func (c *Console) fail(w http.ResponseWriter, r *request, err error) {
	var elsewhere *redirectError
	if errors.As(err, &elsewhere) {
		http.Redirect(w, r.Request, elsewhere.to, http.StatusSeeOther)
		return
	}
	var file *download
	if errors.As(err, &file) {
		h := w.Header()
		h.Set("Content-Security-Policy", closedPolicy)
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": file.name}))
		_, _ = w.Write(file.body) // the client may have disconnected
		return
	}
	if errors.Is(err, errNoSession) && isScript(r.Request) { // the login is no part of a page
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if errors.Is(err, errNoSession) {
		if r.URL.Path == changePath {
			setNotice(w, r, "Not done: "+shorten(r.PostFormValue("label"), 100).Text+". Your session had ended."+
				reasonText(r), unsentSeconds)
		}
		http.Redirect(w, r.Request, loginPath(r.page()), http.StatusSeeOther)
		return
	}
	p := admin.Describe(err)
	if p.Status >= http.StatusInternalServerError {
		c.Logger.Error("console page failed", "path", r.URL.Path, "status", p.Status, "error", err)
	}
	v := problemView(r, p)
	if p.Status >= http.StatusInternalServerError && r.Method == http.MethodGet {
		v.Refresh = problemRefresh
	}
	c.render(w, r, p.Status, v)
}

// problemRefresh is the number of seconds after which a page that failed is read again.
const problemRefresh = 5

// notFound is the page of every path that has none.
func notFound(_ context.Context, r *request) (*view, error) {
	return nil, admin.NewProblem("not-found", "There is no page at this address.")
}
