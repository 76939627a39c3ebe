package console

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/postgres"
)

// errNoSession means that the browser must log in first.
var errNoSession = errors.New("no session")

// The names of the session's cookie. Browsers send the first one to the host that set it only, and
// only over HTTPS. The second one is for plain HTTP on loopback.
const (
	secureCookie   = "__Host-postern"
	loopbackCookie = "postern_console"
)

// cookieName returns the name of the session's cookie for a request. A proxy that terminates TLS
// reaches the console over plain HTTP, so only loopback names may do without HTTPS.
func cookieName(r *http.Request) string {
	name := hostOf(r.Host)
	if ip := net.ParseIP(name); r.TLS == nil && (name == "localhost" || ip != nil && ip.IsLoopback()) {
		return loopbackCookie
	}
	return secureCookie
}

// operatorOf identifies the operator by the session. Where no token is required, a browser without
// session may do everything. used: the operator sent the request. While the database is
// unavailable, a session that was valid a short time ago can still read pages, because some pages
// explain the outage. Errors: errNoSession, and those of the database.
func (c *Console) operatorOf(r *http.Request, used bool) (operator, error) {
	cookie, err := r.Cookie(cookieName(r))
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), PageTimeout)
		defer cancel()
		s, err := adminauth.FindSession(ctx, c.Sessions, cookie.Value, used)
		if err == nil {
			who := operator{s.Token, s.Role, formToken([]byte(cookie.Value))}
			c.recent.put(who, c.Now())
			return who, nil
		}
		if !errors.Is(err, adminauth.ErrUnknownToken) {
			who, ok := c.recent.find(formToken([]byte(cookie.Value)), c.Now())
			if ok && r.Method == http.MethodGet && postgres.IsUnavailable(err) {
				return who, nil
			}
			return operator{formToken: formToken([]byte(cookie.Value))}, err
		}
		c.recent.remove(formToken([]byte(cookie.Value)))
	}
	if c.RequireTokens {
		return operator{}, errNoSession
	}
	return operator{role: adminauth.Operator, formToken: formToken(c.formKey)}, nil
}

const (
	// recentFor is for how long a session is accepted without the database.
	recentFor = 15 * time.Minute
	// maxRecent limits the memory for sessions.
	maxRecent = 1000
)

// recentSessions are the operators of sessions that the database had a short time ago, by their
// form tokens: those are digests, from which the secrets of sessions cannot be made.
type recentSessions struct {
	mu  sync.Mutex
	all map[string]recentSession
}

type recentSession struct {
	operator
	at time.Time
}

func (s *recentSessions) put(who operator, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxRecent || s.all == nil {
		s.all = map[string]recentSession{}
	}
	s.all[who.formToken] = recentSession{who, now}
}

func (s *recentSessions) find(formToken string, now time.Time) (operator, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.all[formToken]
	return found.operator, ok && now.Sub(found.at) < recentFor
}

func (s *recentSessions) remove(formToken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, formToken)
}

func (c *Console) addSessionRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+Prefix+"login", c.showLogin)
	mux.HandleFunc("POST "+Prefix+"login", c.login)
	mux.HandleFunc("POST "+Prefix+"logout", c.logout)
	mux.HandleFunc("POST "+Prefix+"settings", c.saveSettings)
}

// loginPath is the login's address, after which the browser goes on to the page that it wanted.
func loginPath(wanted string) string {
	return Prefix + "login?" + url.Values{"next": {wanted}}.Encode()
}

// ownPath returns an address of the console, and its first page for any other address.
func ownPath(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(u.Path, Prefix) || hasDotSegments(u.Path) ||
		strings.Contains(address, "\\") || strings.HasPrefix(address, "//") {
		return Prefix
	}
	return u.RequestURI()
}

// hasDotSegments reports whether a browser would lead a path to another folder than its first
// letters say.
func hasDotSegments(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(s string) bool { return s == "." || s == ".." })
}

func (c *Console) showLogin(w http.ResponseWriter, hr *http.Request) {
	r, err := c.newRequest(w, hr)
	if err == nil && r.who.name != "" {
		http.Redirect(w, hr, ownPath(hr.FormValue("next")), http.StatusSeeOther)
		return
	}
	c.render(w, r, http.StatusOK, loginView(hr.FormValue("next"), ""))
}

// login exchanges a token for a session. The session has a new id, whatever the browser sent.
func (c *Console) login(w http.ResponseWriter, hr *http.Request) {
	r, _ := c.newRequest(w, hr)
	next := ownPath(hr.PostFormValue("next"))
	ctx, cancel := context.WithTimeout(hr.Context(), PageTimeout)
	defer cancel()
	name, _, err := c.Tokens.Check(ctx, strings.TrimSpace(hr.PostFormValue("token")))
	if err != nil {
		c.DeniedRequests.Add(err)
	}
	if errors.Is(err, adminauth.ErrUnknownToken) {
		if wait, first := c.logins.failed(networkOf(hr)); wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds())+1))
			c.render(w, r, http.StatusTooManyRequests, loginView(next, "Too many attempts. Try again in a minute."))
			return
		} else if first {
			c.recordDenied(ctx, hr)
		}
		c.render(w, r, http.StatusUnauthorized, loginView(next,
			"This token does not exist, is revoked, or has expired. Create one: postern token create."))
		return
	}
	var secret string
	if err == nil {
		secret, err = adminauth.CreateSession(ctx, c.Sessions, name, hr.RemoteAddr, hr.UserAgent())
	}
	if err != nil {
		c.fail(w, r, err)
		return
	}
	setCookie(w, hr, cookieName(hr), secret, 0)
	http.Redirect(w, hr, next, http.StatusSeeOther)
}

// recordDenied records the first failed login of an address in a minute. An error changes nothing
// for the client.
func (c *Console) recordDenied(ctx context.Context, hr *http.Request) {
	c.Logger.Warn("login to the console denied: the token is not valid", "address", hr.RemoteAddr)
	if err := adminauth.WriteAudit(ctx, c.Sessions, adminauth.Actor{Name: "unknown", Via: adminauth.ViaConsole,
		Address: hr.RemoteAddr}, adminauth.AuditEntry{Action: adminauth.LoginDenied}); err != nil {
		c.Logger.Warn("denied login not recorded in the audit", "error", err)
	}
}

// logout ends the session. While the database is unavailable, only this browser forgets it.
func (c *Console) logout(w http.ResponseWriter, hr *http.Request) {
	r, err := c.newRequest(w, hr)
	if r.who.formToken == "" {
		c.fail(w, r, err)
		return
	}
	if err = c.checkForm(r); err == nil {
		if cookie, cookieErr := hr.Cookie(cookieName(hr)); cookieErr == nil {
			ctx, cancel := context.WithTimeout(hr.Context(), PageTimeout)
			defer cancel()
			err = adminauth.DeleteSession(ctx, c.Sessions, cookie.Value)
		}
		c.recent.remove(r.who.formToken)
		setCookie(w, hr, cookieName(hr), "", -1)
	}
	if err != nil {
		c.fail(w, r, err)
		return
	}
	http.Redirect(w, hr, Prefix, http.StatusSeeOther)
}

// saveSettings stores the browser's time zone and theme in cookies, and whether keys are off.
func (c *Console) saveSettings(w http.ResponseWriter, hr *http.Request) {
	const year = 365 * 24 * 3600
	if zone := hr.PostFormValue("zone"); zone != "" && len(zone) <= 64 {
		if _, err := time.LoadLocation(zone); err == nil {
			setCookie(w, hr, zoneCookie, zone, year)
		}
	}
	switch theme := hr.PostFormValue("theme"); theme {
	case "light", "dark":
		setCookie(w, hr, themeCookie, theme, year)
	case "system":
		setCookie(w, hr, themeCookie, "", -1)
	}
	switch keys := hr.PostFormValue("keys"); keys {
	case "off":
		setCookie(w, hr, keysCookie, keys, year)
	case "on":
		setCookie(w, hr, keysCookie, "", -1)
	}
	http.Redirect(w, hr, ownPath(hr.PostFormValue("next")), http.StatusSeeOther)
}

func setCookie(w http.ResponseWriter, r *http.Request, name, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		Secure: cookieName(r) == secureCookie, SameSite: http.SameSiteStrictMode})
}

// checkForm returns an error for a form that this console did not make for this operator.
func (c *Console) checkForm(r *request) error {
	if got := r.PostFormValue("form_token"); got == "" || !equalText(got, r.who.formToken) {
		return admin.NewProblem("invalid", "The form is out of date: it was made before your last login. If you sent "+
			"it before, check whether the change was made. Otherwise open the page again and repeat the change.")
	}
	return nil
}

// networkOf returns the address of a client. A client with IPv6 usually has all addresses of a /64,
// so it is that network.
func networkOf(r *http.Request) string {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := client.Addr().Unmap()
	if address.Is4() {
		return address.String()
	}
	network, err := address.Prefix(64)
	if err != nil {
		return address.String()
	}
	return network.String()
}

const (
	// maxFailedLogins is how many failed logins an address has in a minute.
	maxFailedLogins = 5
	// maxLimitedAddresses limits the memory for addresses. When it is full, all addresses wait.
	maxLimitedAddresses = 10_000
	// maxRecordedAddresses is for how many addresses in a minute a failed login is recorded.
	maxRecordedAddresses = 100
)

// loginLimiter counts failed logins by networkOf and minute.
type loginLimiter struct {
	now    func() time.Time
	mu     sync.Mutex
	minute time.Time
	counts map[string]int
}

func newLoginLimiter(now func() time.Time) *loginLimiter {
	return &loginLimiter{now: now, counts: map[string]int{}}
}

// failed counts a failed login. It returns how long the address must wait, 0 if it may try again,
// and whether to record it: the first one of an address in a minute, for so many addresses.
func (l *loginLimiter) failed(address string) (wait time.Duration, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.startMinute()
	if l.counts[address] >= maxFailedLogins || len(l.counts) >= maxLimitedAddresses {
		return l.minute.Add(time.Minute).Sub(l.now()), false
	}
	l.counts[address]++
	return 0, l.counts[address] == 1 && len(l.counts) <= maxRecordedAddresses
}

// startMinute resets the counts of the minute before.
func (l *loginLimiter) startMinute() {
	if minute := l.now().Truncate(time.Minute); !minute.Equal(l.minute) {
		l.minute = minute
		clear(l.counts)
	}
}
