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
	"github.com/postern-gateway/postern/internal/provider/rest"
	"github.com/postern-gateway/postern/internal/settings"
)

// API configures how Postern reads the provider's API for a source. It uses the API to find data
// that webhooks did not deliver. Leave the section out to read nothing.
type API struct {
	// BaseURL is the API's address without the paths of calls, for example that of a proxy. Leave
	// it unset for the provider's own address. Each call carries the key, so plain http is allowed
	// only for this machine.
	BaseURL settings.URL `yaml:"base_url,omitempty" unset:"the provider's" validate:"omitempty,api_url"`
	// Key is the credential. Use a key with read permission only.
	Key APIKey `yaml:"key,omitempty"`
	// Version is the API version that calls request. Use the version that the webhook's settings at
	// the provider show, because events have it too. Leave it unset for the account's own version
	// (Shopify: 2026-07).
	Version string `yaml:"version,omitempty"`
	// Rate is the maximum number of calls per second for one account, over all processes. The
	// default leaves most of the provider's limit to your own programs. Stripe: 10 in live mode, 5
	// in test mode. Shopify: 1. GitHub: 5; after half of the key's hourly calls are used, Postern
	// makes no more calls in that hour. Two sources with the same key have separate rate budgets:
	// divide the rate among them.
	Rate int `yaml:"rate,omitempty" unset:"the provider's" validate:"omitempty,gte=1,lte=10000"`
	// MonthlyCalls is the maximum number of calls within thirty days for one account, over all
	// processes. Leave it unset for no limit. Set it if the provider limits reads, to the number of
	// reads that your own programs do not need. Stripe allows 500 reads for each transaction, at
	// least 10,000 a month, and counts the reads of your programs too. The last tenth is reserved
	// for calls that an operator requests for a named object. Calls above the limit wait. They
	// continue when older calls are more than thirty days ago, or when you raise the limit.
	MonthlyCalls int `yaml:"monthly,omitempty" unset:"no limit" validate:"omitempty,gte=1,lte=1000000000"`
	// Concurrency is the maximum number of simultaneous calls for one account, over all processes.
	Concurrency int `yaml:"concurrency,omitempty" unset:"the provider's" validate:"omitempty,gte=1,lte=100"`
	// IDOnlyEvents: true also reads id-only events, which the provider lists separately (Stripe:
	// events of API v2). Set it if an event destination at Stripe sends such events to this source.
	// The key must be allowed to read them.
	IDOnlyEvents bool `yaml:"id_only_events,omitempty"`
	// Timeout limits one call, including reading its response.
	Timeout time.Duration `yaml:"timeout,omitempty" unset:"30s" validate:"omitempty,gte=10000000,lte=600000000000"`
	// MaxResponseBytes is the size of the largest response that a call accepts. A call with a
	// larger response fails and is retried later.
	MaxResponseBytes settings.Bytes `yaml:"max_response_bytes,omitempty" unset:"16MiB" validate:"omitempty,gte=1024,lte=268435456"`
	// LateEventGrace is how long Postern waits for a late event before it refetches the object. It
	// waits in two cases: an event's previous values do not match the mirror, or a late event
	// changed a state that was certain. Use a long time if the provider's events often do not say
	// what changed.
	LateEventGrace time.Duration `yaml:"late_event_grace,omitempty" unset:"2m" validate:"omitempty,gte=1000000000,lte=2592000000000000"`
	// Hooks are the webhooks whose deliveries Postern reads, to find events that are missing in the
	// log. The API must list deliveries (GitHub). Write repos/OWNER/NAME/hooks/ID or
	// orgs/NAME/hooks/ID. ID is the number at the end of the URL of the webhook's settings page.
	Hooks []string `yaml:"hooks,omitempty"`
	// Redeliver: true asks the provider to send a missed delivery again, if its API does not return
	// the content. The key must be allowed to write webhooks.
	Redeliver bool `yaml:"redeliver,omitempty"`
	// Repositories are the repositories whose objects Postern lists (GitHub): OWNER/NAME.
	Repositories []string `yaml:"repositories,omitempty"`
	// BulkTypes are the object types that a full scan lists with one bulk operation (Shopify). The
	// provider writes ids and versions into a file, which takes only a few calls. Each object that
	// the mirror does not have takes one more call. Name large types of which the mirror has almost
	// all objects.
	BulkTypes []string `yaml:"bulk,omitempty"`
	// Types adds object types to those that Postern can already read from the provider (Shopify).
	// Each says how to read one object and how to list all.
	Types map[string]APIType `yaml:"types,omitempty"`
	// Described says how to read an API that Postern does not know.
	Described rest.Spec `yaml:",inline"`
}

// APIType says how to read and list the objects of a type that is not built in. A response must
// carry the object in a member with the type's name. The object must have id and updated_at.
type APIType struct {
	// Get is the path of one object, after the version, with {id}, e.g. gift_cards/{id}.json.
	Get string `yaml:"get,omitempty"`
	// List is the GraphQL connection that lists all objects, e.g. giftCards. If the connection
	// leaves out some objects by default, add arguments that include them, e.g.
	// fulfillmentOrders(includeClosed: true). Leave it unset to list none.
	List string `yaml:"list,omitempty"`
	// Changed: true says that the connection's search supports updated_at, so that Postern can list
	// only recent changes.
	Changed bool `yaml:"changed,omitempty"`
}

// APIKey is a credential. Set exactly one of value, env and file.
type APIKey struct {
	// Value is the key itself. Prefer env or file.
	Value settings.MaskedString `yaml:"value,omitempty"`
	// Env names the variable that holds the key.
	Env string `yaml:"env,omitempty"`
	// File names the file that holds the key. Postern removes one line break at its end. It reads
	// the file at the start, and again when the file changes.
	File string `yaml:"file,omitempty"`

	key []byte
}

const (
	defaultAPITimeout     = 30 * time.Second
	defaultResponseBytes  = 16 << 20
	defaultLateEventGrace = 2 * time.Minute
)

// Format never prints the key, whatever the verb.
func (k APIKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "the key of the API") }

func (k *APIKey) isUnset() bool { return k.Value == "" && k.Env == "" && k.File == "" }

// read loads the key from the variable or file.
func (k *APIKey) read(env func(string) string, p loadOptions) error {
	if k.isUnset() {
		return errors.New("is not set: give exactly one of value, env and file, with a key that may only read")
	}
	s := Secret{Value: k.Value, Env: k.Env, File: k.File}
	if err := s.read(env, p); err != nil {
		return err
	}
	// The key becomes part of a header. Any other character would make the first call fail.
	if slices.ContainsFunc(s.secret, func(b byte) bool { return b <= ' ' || b > '~' }) {
		return errors.New("contains a space, a line break or another character that keys do not have: give only the " +
			"key")
	}
	k.key = s.secret
	return nil
}

// reader returns the reader of the source's API: a generic one where the section describes objects,
// else the provider's. It is nil where neither exists. The same reader reads stored API responses
// again later.
func (s *Source) reader(c settings.Checker, p provider.Provider) provider.Reader {
	a := &s.API.Described
	own, _ := p.(provider.Reader)
	switch {
	case len(a.Objects) == 0:
		for key, is := range map[string]bool{"header": !settings.IsZero(a.Header), "headers": len(a.Headers) > 0,
			"control": !a.KeyCheck.IsZero(), "missing": !settings.IsZero(a.Missing),
			"expired": !settings.IsZero(a.Expired), "lag": a.Lag != 0, "events": a.Events != nil} {
			if is {
				c.Fail(key, "applies only to an API that the section objects describes: set objects, or leave this out")
			}
		}
		return own
	case own != nil:
		c.Fail("objects", "the API of %s is built in: leave this out", p.Name())
		return own
	}
	a.Check(c, s.Account, p)
	if a.Events != nil {
		return rest.NewLister(*a, p)
	}
	return rest.New(*a)
}

// checkAPIAddress rejects addresses to which a key must not be sent.
func checkAPIAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return fmt.Errorf("%q is not the address of an API: write e.g. https://api.example.com",
			settings.MaskURL(address))
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return errors.New("has a user, a query or a # part, which are not sent: remove them; the key has a " +
			"setting of its own")
	case u.Scheme == "http" && !isLoopbackHost(u.Hostname()):
		return fmt.Errorf("%q is plain http, so everyone on the network path can read the key: write https",
			settings.MaskURL(address))
	}
	return nil
}

func isLoopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// providerAPI returns the section with the defaults of the provider's reader, or nil where the
// section is empty.
func (a *API) providerAPI(p provider.Provider, reader provider.Reader, src *provider.Source) (*provider.API, error) {
	if settings.IsZero(*a) {
		return nil, nil
	}
	if reader == nil {
		return nil, fmt.Errorf("reading the API of %s is not supported, only that of %s: leave this section out, or "+
			"describe the API under objects", p.Name(), strings.Join(readableProviders(), ", "))
	}
	if _, ok := p.(provider.DeliveryLister); !ok && (len(a.Hooks) > 0 || len(a.Repositories) > 0 || a.Redeliver) {
		return nil, fmt.Errorf("the API of %s does not support hooks, repositories and redeliver: leave these out",
			p.Name())
	}
	types, err := a.types(p)
	if err != nil {
		return nil, err
	}
	if _, ok := p.(provider.FileLister); !ok && len(a.BulkTypes) > 0 {
		return nil, fmt.Errorf("bulk: the API of %s has no bulk operations: leave it out", p.Name())
	}
	if _, ok := p.(provider.IDOnlyEventLister); a.IDOnlyEvents && !ok {
		return nil, fmt.Errorf("id_only_events: %s has no id-only events: leave it out", p.Name())
	}
	out := &provider.API{
		BaseURL: strings.TrimRight(string(a.BaseURL), "/"), Key: provider.Secret{Name: "api.key", Value: a.Key.key},
		Version: a.Version,
		Rate:    a.Rate, Concurrency: a.Concurrency, MonthlyCalls: a.MonthlyCalls, IDOnlyEvents: a.IDOnlyEvents,
		Timeout: cmp.Or(a.Timeout, defaultAPITimeout), MaxBytes: cmp.Or(int64(a.MaxResponseBytes),
			defaultResponseBytes),
		LateEventGrace: cmp.Or(a.LateEventGrace, defaultLateEventGrace), Webhooks: a.Hooks,
		Repositories: a.Repositories, Bulk: a.BulkTypes,
		Types: types, Redeliver: a.Redeliver,
	}
	err = reader.CompleteAPI(out)
	if checker, ok := reader.(provider.BaseURLReader); ok && err == nil {
		err = checker.SetBaseURL(src, out)
	}
	return out, err
}

// types converts the described types to those of package provider.
func (a *API) types(p provider.Provider) (map[string]provider.APIType, error) {
	if len(a.Types) == 0 {
		return nil, nil
	}
	typed, ok := p.(provider.TypeChecker)
	if !ok {
		return nil, fmt.Errorf("types: the types of %s are built in: leave this out", p.Name())
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

// readableProviders returns the names of the providers whose API Postern can read.
func readableProviders() []string {
	var names []string
	for _, p := range all.All() {
		if _, ok := p.(provider.Reader); ok {
			names = append(names, p.Name())
		}
	}
	return names
}
