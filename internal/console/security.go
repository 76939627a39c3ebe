package console

import (
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/admin"
)

// pagePolicy is the content security policy of a page. Only scripts with the nonce run, none
// without a nonce, no inline style counts, and nothing is loaded from elsewhere.
func pagePolicy(nonce string) string {
	scripts := "'none'"
	if nonce != "" {
		scripts = "'self' 'nonce-" + nonce + "'"
	}
	return "default-src 'none'; script-src " + scripts + "; style-src 'self'; img-src 'self'; " +
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; " +
		"require-trusted-types-for 'script'; trusted-types htmx"
}

// closedPolicy is the policy of everything that is no page.
const closedPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox"

// secure sets the headers of every response, and rejects requests that come by a foreign host name
// or from a foreign web page.
func (c *Console) secure(next http.Handler) http.Handler {
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		c.reject(w, hr, "cross-origin", "This form was sent by another web site. Open the console and try again.")
	}))
	next = guard.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		defer c.recoverPanic(w, hr)
		h := w.Header()
		h.Set("Content-Security-Policy", closedPolicy)
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Robots-Tag", "noindex")
		if hr.TLS != nil {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !c.isKnownHost(hr.Host) {
			c.reject(w, hr, "foreign-host", "The console does not accept the host name "+hostOf(hr.Host)+
				". Use 127.0.0.1 or localhost, or add the name to console.hosts.")
			return
		}
		if isForeignLink(hr) {
			c.reject(w, hr, "cross-origin", "A link on another web site led here. Open the page if you want to see it:")
			return
		}
		hr.Body = http.MaxBytesReader(w, hr.Body, maxFormBytes)
		next.ServeHTTP(w, hr)
	})
}

// isForeignLink reports whether another web site leads a browser to a page that may cost work. Only
// the first page and the login open at once. The browser does not send the session's cookie either.
func isForeignLink(hr *http.Request) bool {
	site := hr.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && (hr.Method == http.MethodGet ||
		hr.Method == http.MethodHead) && hr.URL.Path != Prefix && hr.URL.Path != Prefix+"login" &&
		!strings.HasPrefix(hr.URL.Path, Prefix+"assets/")
}

// maxFormBytes limits the body of a form.
const maxFormBytes = 256 << 10

// recoverPanic makes an error page of a panic.
func (c *Console) recoverPanic(w http.ResponseWriter, hr *http.Request) {
	fault := recover()
	if fault == nil {
		return
	}
	if fault == http.ErrAbortHandler {
		panic(fault)
	}
	c.Logger.Error("console page failed", "path", hr.URL.Path, "panic", fault, "stack", string(debug.Stack()))
	c.reject(w, hr, "internal", "")
}

// isKnownHost reports whether a browser may use this host name. A web page can point its own name
// to any address, but not an IP address or localhost.
func (c *Console) isKnownHost(host string) bool {
	name := hostOf(host)
	if !c.RequireTokens {
		ip := net.ParseIP(name)
		return name == "localhost" || ip != nil && ip.IsLoopback()
	}
	return name == "localhost" || net.ParseIP(name) != nil || slices.Contains(c.Hosts, name)
}

// hostOf returns the name in a Host header, in lower case and without port and brackets.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
}

// reject writes the page of a request that does not get to its page.
func (c *Console) reject(w http.ResponseWriter, hr *http.Request, problem, detail string) {
	r := &request{Request: hr, c: c, zone: zoneOf(hr), now: c.Now()}
	w.Header().Set("Content-Security-Policy", pagePolicy(""))
	p := admin.NewProblem(problem, detail)
	v := problemView(r, p)
	if isForeignLink(hr) && p.Status == http.StatusForbidden {
		address := ownPath(hr.URL.RequestURI())
		open := link(address, address)
		v.Notes[0].Link = &open
	}
	c.render(w, r, p.Status, v)
}
