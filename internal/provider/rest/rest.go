// Package rest reads any JSON API over HTTP as its Spec says: which call reads an object and which lists them, and where in the answers
// id, version, state and the next page stand.
package rest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

const (
	// defaultRate and defaultConcurrency are for APIs whose limits nobody has told: few have lower ones.
	defaultRate, defaultConcurrency = 5, 5
	// DefaultLag is how old a state an API is taken to answer with where the Spec does not say.
	DefaultLag = time.Second
	// second is the coarsest clock that events are stamped with, in microseconds.
	second = int64(time.Second / time.Microsecond)
)

// Spec says how an API is read.
type Spec struct {
	// Header is the name of the header with the credential, and Credential its value: {key}, or {key_base64} for a key of the form user:password.
	Header     string
	Credential Template
	// Headers are sent with each call: {version} is the API's.
	Headers map[string]Template
	// Control is found wherever the credentials are good: {account}.
	Control Request
	// Missing tells an answer that says that there is no such object, Expired one that says that a place in a list is no longer known.
	Missing, Expired Sign
	// Lag is how old a state the API may answer with.
	Lag time.Duration
	// Types are the objects that can be read, under the type and by the id that the source's webhooks give them.
	Types map[string]Type
	// Events is how it lists its events; nil: it does not.
	Events *Events
}

// Sign is how an answer shows something: by its status and, if Path is set, a value in its body.
type Sign struct {
	Statuses []int
	Condition
}

// Condition is a value in an answer. The zero Condition holds nowhere.
type Condition struct {
	// Path is where the value stands. Equals is the text that it must be; empty: it must be there, and none of null, false, 0 and "".
	Path, Equals string
}

// Type is how the objects of a type are read.
type Type struct {
	// Get reads an object: {id}, {account}. Item is where the object stands in the answer; empty: it is the answer.
	Get  Request
	Item string
	// ID is where the object's id stands in it.
	ID string
	// Version is the object's own version; nil: a look is ordered by when it began.
	Version *Version
	// Deleted tells in the object that it is gone.
	Deleted Condition
	// Volatile are dotted paths of the object that change without a version.
	Volatile []string
	// List lists them; nil: nothing does.
	List *List
}

// Version is an object's own version.
type Version struct {
	Path string
	Unit declared.Unit
	// Still: it is not known to move with every change.
	Still bool
}

// Reader reads an API as a Spec says.
type Reader struct{ spec Spec }

var (
	_ provider.ObjectLister = (*Reader)(nil)
	_ provider.Sited        = (*Reader)(nil)
)

// New is the reader of a Spec, whose Events it leaves out.
func New(spec Spec) *Reader { return &Reader{spec: spec} }

// NewLister is the reader of a Spec with Events.
func NewLister(spec Spec) *Lister { return &Lister{New(spec)} }

// CompleteAPI wants an address, since no provider has one of its own here.
func (r *Reader) CompleteAPI(api *provider.API) error {
	if api.BaseURL == "" {
		return errors.New("base_url: is not set: name the API's address, e.g. https://api.example.com")
	}
	if api.Version != "" && !r.sendsVersion() {
		return errors.New("version: is sent nowhere: send it in one of headers, e.g. Api-Version: '{version}', or leave it out")
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

// Site has nothing to add: only the section api says where the API is.
func (r *Reader) Site(*provider.Source, *provider.API) error { return nil }

// Home is the source's own account, whose key it is.
func (r *Reader) Home(src *provider.Source) string { return src.Account }

// Authorize sends the credential in its header, and the headers that each call has.
func (r *Reader) Authorize(api *provider.API, h http.Header) {
	h.Set("Accept", "application/json")
	for name, value := range r.spec.Headers {
		h.Set(name, value.expand(values{"version": api.Version}))
	}
	key := api.Key.Value
	h.Set(r.spec.Header, r.spec.Credential.expand(values{"key": string(key), "key_base64": base64.StdEncoding.EncodeToString(key)}))
}

// Fetch is the call of the type's Get. It has none for another account than the source's own where the call does not name it: the key's would answer.
func (r *Reader) Fetch(src *provider.Source, _ *provider.API, account, objectType, objectID string) (provider.Call, bool) {
	t, ok := r.spec.Types[objectType]
	if !ok || !reaches(src, t.Get, account) {
		return provider.Call{}, false
	}
	return t.Get.call(values{"id": objectID, "account": account}, account)
}

// reaches tells whether a call is for the account.
func reaches(src *provider.Source, q Request, account string) bool {
	return account == src.Account || q.Names("account")
}

// Control is the call that the Spec names.
func (r *Reader) Control(_ *provider.API, account string) provider.Call {
	call, _ := r.spec.Control.call(values{"account": account}, account)
	return call
}

// Lag is the Spec's.
func (r *Reader) Lag() time.Duration { return r.spec.Lag }

// Answer judges by the status and what the Spec says of it. An answer may be a list.
func (r *Reader) Answer(status int, header http.Header, body []byte) provider.Verdict {
	switch {
	case r.spec.Expired.in(status, body):
		return provider.Verdict{Kind: provider.Expired, Detail: fmt.Sprintf("answered %d: the place in the list is no longer known", status)}
	case r.spec.Missing.in(status, body):
		return provider.Verdict{Kind: provider.Missing, Detail: fmt.Sprintf("answered %d: there is no such object", status)}
	case isArray(body):
		body = []byte("{}") // as good as an object
	}
	return provider.JudgeStatus(status, header, body)
}

func isArray(body []byte) bool {
	text := bytes.TrimSpace(body)
	return bytes.HasPrefix(text, []byte("[")) && bytes.HasSuffix(text, []byte("]"))
}

// in tells whether an answer has the sign.
func (s Sign) in(status int, body []byte) bool {
	if !slices.Contains(s.Statuses, status) || s.Path == "" {
		return slices.Contains(s.Statuses, status)
	}
	root, err := canonical.Parse(body)
	if err != nil {
		return false
	}
	defer root.Release()
	return s.holds(root)
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
