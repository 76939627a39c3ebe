// Package rest reads a JSON API over HTTP that is described by data (Spec): the calls that read and
// list objects, and where a response contains id, version, state and the next page. The
// configuration builds a Spec from a source's section api. The package makes no calls itself.
package rest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

const (
	// defaultRate and defaultConcurrency are for APIs whose limits are not configured. Few APIs
	// have lower limits.
	defaultRate, defaultConcurrency = 5, 5
	// defaultLag is how old a state in a response is assumed to be if the Spec does not say.
	defaultLag = time.Second
	// defaultEventRetention is how long an API lists an event if the Spec does not say.
	defaultEventRetention = 30 * 24 * time.Hour
	// second is the coarsest clock of events, in microseconds.
	second = int64(time.Second / time.Microsecond)
)

// Reader reads an API that a Spec describes.
type Reader struct{ spec Spec }

var (
	_ provider.ObjectLister  = (*Reader)(nil)
	_ provider.BaseURLReader = (*Reader)(nil)
)

// New returns the reader of a Spec. It ignores its Events.
func New(spec Spec) *Reader { return &Reader{spec: spec.complete()} }

// NewLister returns the reader of a Spec with Events. The provider names events as it names those
// of webhooks.
func NewLister(spec Spec, p provider.Provider) *Lister { return &Lister{New(spec), p} }

// CompleteAPI requires an address, because such an API has no default.
func (r *Reader) CompleteAPI(api *provider.API) error {
	if api.BaseURL == "" {
		return errors.New("base_url: is not set: name the API's address, e.g. https://api.example.com")
	}
	if api.Version != "" && !r.sendsVersion() {
		return errors.New("version: is not used: send it in one of the headers, e.g. Api-Version: '{version}', or " +
			"leave it out")
	}
	if api.Rate == 0 {
		api.Rate = defaultRate
	}
	if api.Concurrency == 0 {
		api.Concurrency = defaultConcurrency
	}
	return nil
}

func (r *Reader) sendsVersion() bool {
	for _, t := range r.spec.Headers {
		if t.Names("version") {
			return true
		}
	}
	return false
}

// SetBaseURL does nothing: only the section api says where the API is.
func (r *Reader) SetBaseURL(*provider.Source, *provider.API) error { return nil }

// KeyAccount returns the source's own account.
func (r *Reader) KeyAccount(src *provider.Source) string { return src.Account }

// Authorize sets the credential's header, and the headers of every call.
func (r *Reader) Authorize(api *provider.API, h http.Header) {
	h.Set("Accept", "application/json")
	for name, value := range r.spec.Headers {
		h.Set(name, value.expand(values{"version": api.Version}))
	}
	name, value, _ := strings.Cut(r.spec.Header.expand(values{"key": string(api.Key.Value),
		"key_base64": base64.StdEncoding.EncodeToString(api.Key.Value)}), ":")
	h.Set(strings.TrimSpace(name), strings.TrimSpace(value))
}

// Fetch returns the call of the type's Get. For another account than the source's own the call must
// contain {account}; otherwise it would read the object of the key's account.
func (r *Reader) Fetch(src *provider.Source, _ *provider.API, account, objectType, objectID string) (provider.Call,
	bool) {
	t, ok := r.spec.Objects[objectType]
	if !ok || !coversAccount(src, t.Get, account) {
		return provider.Call{}, false
	}
	return t.Get.call(values{"id": objectID, "account": account}, account)
}

// coversAccount reports whether a call is for the account.
func coversAccount(src *provider.Source, q Request, account string) bool {
	return account == src.Account || q.Names("account")
}

// CredentialCheck returns the call Spec.KeyCheck.
func (r *Reader) CredentialCheck(_ *provider.API, account string) provider.Call {
	call, _ := r.spec.KeyCheck.call(values{"account": account}, account)
	return call
}

// Lag returns the Spec's value.
func (r *Reader) Lag() time.Duration { return r.spec.Lag }

// Answer classifies by the status and by the Spec. A response may be a list.
func (r *Reader) Answer(status int, header http.Header, body []byte) provider.Verdict {
	switch {
	case r.spec.Expired.matches(status, body):
		return provider.Verdict{Kind: provider.Expired,
			Detail: fmt.Sprintf("answered %d: the position in the list (cursor) is no longer known", status)}
	case r.spec.Missing.matches(status, body):
		return provider.Verdict{Kind: provider.Missing, Detail: fmt.Sprintf("answered %d: there is no such object",
			status)}
	case isArray(body):
		body = []byte("{}") // a list is as valid as an object
	}
	return provider.ClassifyStatus(status, header, body)
}

func isArray(body []byte) bool {
	text := bytes.TrimSpace(body)
	return bytes.HasPrefix(text, []byte("[")) && bytes.HasSuffix(text, []byte("]"))
}

// matches reports whether a response matches.
func (s ResponseMatch) matches(status int, body []byte) bool {
	if !slices.Contains(s.Statuses, status) || s.Path == "" {
		return slices.Contains(s.Statuses, status)
	}
	root, err := canonical.Parse(body)
	if err != nil {
		return false
	}
	defer root.Release()
	return Condition{s.Path, s.Equals}.holds(root)
}

func (c Condition) holds(v *canonical.Value) bool {
	if c.Path == "" {
		return false
	}
	v = declared.Lookup(v, c.Path)
	text, ok := declared.Scalar(v)
	switch {
	case c.Equals != "":
		return ok && text == c.Equals
	case v.Kind() == canonical.Object, v.Kind() == canonical.Array:
		return true
	}
	return ok && text != "false" && text != "0"
}
