package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// API is how the provider's API is read for a source, to find what its webhooks do not tell. Leave the whole section out to read nothing.
type API struct {
	// BaseURL is the API's address, without the paths of calls, e.g. of a mirror. Leave unset for the provider's own. Plain http is for this
	// machine alone, since the key travels with each call.
	BaseURL URL `yaml:"base_url,omitempty" shown:"the provider's" validate:"omitempty,api_url"`
	// Key is the credential. Make one that may only read.
	Key APIKey `yaml:"key,omitempty"`
	// Version is the version of the API to ask for: that of the events, as the provider's settings of the webhook show it. Leave unset
	// for the account's own (Shopify: 2026-07).
	Version string `yaml:"version,omitempty"`
	// Rate is the most calls a second for one account, of all processes together. Leave unset for a share that leaves the larger part
	// of the provider's limit to your own calls (Stripe: 10 in live mode, 5 in test mode; Shopify: 1; GitHub: 5, and none for the rest of an
	// hour once half of what the key may call in it is used).
	// Two sources with one key have a budget each: divide the rate among them.
	Rate int `yaml:"rate,omitempty" shown:"the provider's" validate:"omitempty,gte=1,lte=10000"`
	// Monthly is the most calls within thirty days for one account, of all processes together; leave unset for no bound. Set it where the provider allots
	// calls (Stripe: reads, 500 for each transaction and at least 10,000 a month, yours among them), to the share that your own programs can spare. Of the last tenth
	// only what a person asks for by an object's name takes. What is above it waits, and goes on by itself when older calls count no more, or when this is raised.
	Monthly int `yaml:"monthly,omitempty" shown:"no bound" validate:"omitempty,gte=1,lte=1000000000"`
	// Concurrency is the most calls at once for one account, of all processes together.
	Concurrency int `yaml:"concurrency,omitempty" shown:"the provider's" validate:"omitempty,gte=1,lte=100"`
	// ThinEvents says that the source has thin events, which the provider lists apart (Stripe: events of API v2). Set it where a destination of thin
	// events leads here; the key must be allowed to read them.
	ThinEvents bool `yaml:"thin_events,omitempty"`
	// Timeout bounds one call, up to the end of its answer.
	Timeout time.Duration `yaml:"timeout,omitempty" shown:"30s" validate:"omitempty,gte=10000000,lte=600000000000"`
	// MaxAnswerBytes is the largest answer taken; a larger one is trouble, and the call is tried again later.
	MaxAnswerBytes Bytes `yaml:"max_answer_bytes,omitempty" shown:"16MiB" validate:"omitempty,gte=1024,lte=268435456"`
	// Stragglers is how long to wait for an event that is late before its object is looked at: where an event says what was before its change, and the
	// mirror has not seen that, or where one came late and changed a state that was proven. Make it long for a provider whose events often leave out what has changed.
	Stragglers time.Duration `yaml:"stragglers,omitempty" shown:"2m" validate:"omitempty,gte=1000000000,lte=2592000000000000"`
	// Hooks are the webhooks whose deliveries are read for what the log lacks, where the API lists those (GitHub): repos/OWNER/NAME/hooks/ID or
	// orgs/NAME/hooks/ID, ID being the number at the end of the address of the webhook's settings.
	Hooks []string `yaml:"hooks,omitempty"`
	// Redeliver has the provider send a missed delivery again where its API does not give what it carried. The key must be allowed to write webhooks.
	Redeliver bool `yaml:"redeliver,omitempty"`
	// Repositories are those whose objects are listed (GitHub): OWNER/NAME.
	Repositories []string `yaml:"repositories,omitempty"`
	// Bulk are the types whose objects, where all of them are listed, are listed by one bulk operation (Shopify), which the provider writes into a file: ids and
	// versions, for a handful of calls. Name large types that the mirror has most of: each object that it lacks is a call.
	Bulk []string `yaml:"bulk,omitempty"`
	// Types are types of objects beyond those that the provider reads by itself (Shopify): how one is read, and how they are listed.
	Types map[string]APIType `yaml:"types,omitempty"`
	// Header is the header that carries the key, for an API that objects describes: its name and value, with {key}, or {key_base64} for
	// 'Authorization: Basic {key_base64}' and a key of the form user:password.
	Header string `yaml:"header,omitempty" shown:"Authorization: Bearer {key}"`
	// Headers are further ones that each of its calls has, e.g. Api-Version: '{version}'. They are shown, so put no secret here.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Control is the path of a call to it that is answered wherever the key is good, e.g. /v1/me; {account} may stand in it. That an object is
	// missing is believed only after it.
	Control string `yaml:"control,omitempty"`
	// Missing is how it answers that there is no such object; leave unset for 404 and 410.
	Missing APIAnswer `yaml:"missing,omitempty"`
	// Expired is how it answers that a {cursor} is no longer known: then the list is begun again. Leave unset where it never does.
	Expired APIAnswer `yaml:"expired,omitempty"`
	// Lag is how old a state it may answer with, e.g. of a replica. Too small a one lets an old state win.
	Lag time.Duration `yaml:"lag,omitempty" shown:"1s" validate:"omitempty,gte=1000,lte=3600000000000"`
	// Events is how it lists its events, in the shape that the webhooks of the source deliver. Leave it out where it does not: then what webhooks
	// lost is found by comparing objects.
	Events APIEvents `yaml:"events,omitempty"`
	// Objects describes an API that Postern does not know: how objects are read and listed, by their type as the source's events name it. The
	// API must answer JSON, with a header Date. Paths are dotted, as in events and objects of the source.
	Objects map[string]*APIObject `yaml:"objects,omitempty" validate:"dive,required"`
}

// APIType is how objects are read of a type that the provider's API has. What is answered must carry the object in a member of the type's name, with its id and updated_at.
type APIType struct {
	// Get is the path of one behind the version, with {id}, e.g. gift_cards/{id}.json.
	Get string `yaml:"get,omitempty"`
	// List is the connection of GraphQL that lists all, e.g. giftCards, or fulfillmentOrders(includeClosed: true): with what it would leave out. Leave unset to list none.
	List string `yaml:"list,omitempty"`
	// Changed says that the connection's search knows updated_at, so that what changed can be asked for.
	Changed bool `yaml:"changed,omitempty"`
}

// APIKey is the credential: exactly one of value, env and file.
type APIKey struct {
	// Value is the key itself. Prefer env or file.
	Value Hidden `yaml:"value,omitempty"`
	// Env names the variable that holds the key.
	Env string `yaml:"env,omitempty"`
	// File names the file that holds the key; one line end after it is left out. It is read at the start and again when it has changed.
	File string `yaml:"file,omitempty"`

	key []byte
}

const (
	defaultAPITimeout  = 30 * time.Second
	defaultAnswerBytes = 16 << 20
	defaultStragglers  = 2 * time.Minute
)

// Format prints nothing of the key, whatever the verb.
func (k APIKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "the key of the API") }

func (k *APIKey) unset() bool { return k.Value == "" && k.Env == "" && k.File == "" }

// read fetches the key from where it is kept, once.
func (k *APIKey) read(env func(string) string, p purpose) error {
	if k.unset() {
		return errors.New("is not set: give exactly one of value, env and file, with a key that may only read")
	}
	s := Secret{Value: k.Value, Env: k.Env, File: k.File}
	if err := s.read(env, p); err != nil {
		return err
	}
	// It goes into a header, where anything else would be refused at the first call.
	if slices.ContainsFunc(s.secret, func(b byte) bool { return b <= ' ' || b > '~' }) {
		return errors.New("holds a space, a line end or another character that no key has: give the key alone")
	}
	k.key = s.secret
	return nil
}

// checkAPIURL wants an address that a key may be sent to.
func checkAPIURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return fmt.Errorf("%q is no address of an API: write e.g. https://api.example.com", RedactURL(address))
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return errors.New("has a user, a query or a # part, which are not sent: leave them out; the key has a setting of its own")
	case u.Scheme == "http" && !onThisMachine(u.Hostname()):
		return fmt.Errorf("%q is plain http, over which everyone on the way reads the key: write https", RedactURL(address))
	}
	return nil
}

func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// forProvider is the section with the defaults of who reads the API; nil where there is none.
func (a *API) forProvider(p provider.Provider, reader provider.Reader, src *provider.Source) (*provider.API, error) {
	if isZero(*a) {
		return nil, nil
	}
	if reader == nil {
		return nil, fmt.Errorf("the API of %s cannot be read yet, only that of %s: leave this section out, or describe the API under objects", p.Name(), strings.Join(readers(), ", "))
	}
	if _, ok := p.(provider.DeliveryLister); !ok && (len(a.Hooks) > 0 || len(a.Repositories) > 0 || a.Redeliver) {
		return nil, fmt.Errorf("the API of %s has no hooks, repositories and redeliver: leave these out", p.Name())
	}
	types, err := a.types(p)
	if err != nil {
		return nil, err
	}
	if _, ok := p.(provider.FileLister); !ok && len(a.Bulk) > 0 {
		return nil, fmt.Errorf("bulk: the API of %s has no bulk operations: leave it out", p.Name())
	}
	if _, ok := p.(provider.ThinLister); a.ThinEvents && !ok {
		return nil, fmt.Errorf("thin_events: %s has none: leave it out", p.Name())
	}
	out := &provider.API{
		BaseURL: strings.TrimRight(string(a.BaseURL), "/"), Key: provider.Secret{Name: "api.key", Value: a.Key.key}, Version: a.Version,
		Rate: a.Rate, Concurrency: a.Concurrency, Monthly: a.Monthly, ThinEvents: a.ThinEvents, Timeout: cmp.Or(a.Timeout, defaultAPITimeout), MaxBytes: cmp.Or(int64(a.MaxAnswerBytes), defaultAnswerBytes),
		Stragglers: cmp.Or(a.Stragglers, defaultStragglers), Hooks: a.Hooks, Repositories: a.Repositories, Bulk: a.Bulk, Types: types, Redeliver: a.Redeliver,
	}
	err = reader.CompleteAPI(out)
	if sited, ok := reader.(provider.Sited); ok && err == nil {
		err = sited.Site(src, out)
	}
	return out, err
}

// types are the described types, as the provider takes them.
func (a *API) types(p provider.Provider) (map[string]provider.APIType, error) {
	if len(a.Types) == 0 {
		return nil, nil
	}
	typed, ok := p.(provider.Typed)
	if !ok {
		return nil, fmt.Errorf("types: those of %s are built in: leave this out", p.Name())
	}
	out := map[string]provider.APIType{}
	for _, name := range slices.Sorted(maps.Keys(a.Types)) {
		out[name] = provider.APIType(a.Types[name])
		if err := typed.CheckType(name, out[name]); err != nil {
			return nil, fmt.Errorf("types.%.64s: %w", name, err)
		}
	}
	return out, nil
}

// readers are the providers whose API can be read.
func readers() []string {
	var names []string
	for _, p := range all.All() {
		if _, ok := p.(provider.Reader); ok {
			names = append(names, p.Name())
		}
	}
	return names
}
