package config

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"

	"github.com/postern-gateway/postern/internal/provider/all"
)

var captureName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

var sourceName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// check finds every setting whose value cannot be used.
func check(c *Config, p purpose) error {
	var bad []error
	if p.database && c.Database.URL == "" {
		empty := ""
		if variable := EnvName("database", "url"); p.unset(variable) != "not set" {
			empty = " (" + variable + " is " + p.unset(variable) + ")"
		}
		bad = append(bad, &Problem{Path: "database.url", Msg: "is not set" + empty + ": name a PostgreSQL 15 or newer here or in POSTERN_DATABASE_URL, e.g. postgres://postern@localhost/postern (for postern dev none is needed: postern config check --dev)"})
	}
	checked := c
	if !p.secrets {
		without := *c
		without.Sources, without.Schedules, without.Destinations, without.Effects, without.Notify = nil, nil, nil, nil, nil
		checked = &without
	}
	err := newValidator().Struct(checked)
	var fields validator.ValidationErrors
	if errors.As(err, &fields) {
		for _, f := range fields {
			bad = append(bad, &Problem{Path: dotted(f.Namespace()), Msg: explain(f)})
		}
	} else if err != nil {
		bad = append(bad, err)
	}
	bad = append(bad, sharedVariables("sources", checked.Sources), sharedVariables("schedules", checked.Schedules), sharedVariables("destinations", checked.Destinations), sharedVariables("effects", checked.Effects), sharedVariables("notify", checked.Notify), checkEffects(checked), checkNotify(checked), checkBodies(checked), checkSchedules(checked), checkRetention(c.Retention), checkDatabaseURLs(c.Database), checkDurable(c.Database), checkRates(checked))
	return errors.Join(bad...)
}

// checkBodies wants that the largest body fits among those that are held at once: otherwise it could never be taken.
func checkBodies(c *Config) error {
	var bad []error
	want := func(path string, size Bytes) {
		if size > c.Ingest.QueueBytes {
			bad = append(bad, &Problem{Path: path, Msg: fmt.Sprintf("%s is more than ingest.queue_bytes (%s), so the largest bodies could never be taken: lower it, or raise ingest.queue_bytes",
				size, c.Ingest.QueueBytes)})
		}
	}
	want("ingest.max_body_bytes", c.Ingest.MaxBodyBytes)
	for _, name := range sortedKeys(c.Sources) {
		if size := c.Sources[name].MaxBodyBytes; size != c.Ingest.MaxBodyBytes {
			want("sources."+name+".max_body_bytes", size)
		}
	}
	return errors.Join(bad...)
}

// keywords is how a connection string begins that is no URL: host=localhost dbname=postern.
var keywords = regexp.MustCompile(`^\s*[a-z_]+\s*=`)

// checkDatabaseURLs wants addresses that are PostgreSQL's. The errors do not show one, since it may have a password.
func checkDatabaseURLs(d Database) error {
	var bad []error
	for path, address := range map[string]URL{"database.url": d.URL, "database.maintenance_url": d.MaintenanceURL} {
		scheme, _, isURL := strings.Cut(string(address), "://")
		switch {
		case address == "", isURL && (scheme == "postgres" || scheme == "postgresql"), keywords.MatchString(string(address)):
		default:
			bad = append(bad, &Problem{Path: path, Msg: "is no address of PostgreSQL: it begins with postgres://, e.g. postgres://postern@localhost/postern"})
		}
	}
	return errors.Join(bad...)
}

// checkDurable refuses addresses that want commits to be less than durable. Sessions of ours would not obey, and whoever wrote that believes otherwise.
func checkDurable(d Database) error {
	var bad []error
	for _, address := range []struct {
		path string
		url  URL
	}{{"database.url", d.URL}, {"database.maintenance_url", d.MaintenanceURL}} {
		plain, err := url.PathUnescape(string(address.url))
		if err != nil {
			plain = string(address.url)
		}
		// Options may be written with -.
		plain = strings.ReplaceAll(strings.ToLower(plain), "-", "_")
		for _, ours := range [][2]string{
			{"synchronous_commit", "which Postern sets to on for each of its sessions, since an acknowledgement stands for a durable commit"},
			{"default_transaction_isolation", "which Postern sets to read committed for each of its sessions, since its statements are written for that"},
		} {
			if strings.Contains(plain, ours[0]) {
				bad = append(bad, &Problem{Path: address.path, Msg: "names " + ours[0] + ", " + ours[1] + ": take it out"})
			}
		}
	}
	return errors.Join(bad...)
}

// checkRetention wants that nothing is forgotten before the events it belongs to.
func checkRetention(r Retention) error {
	var bad []error
	for _, age := range []struct {
		name string
		days int
	}{{"keys", r.Keys}, {"outcomes", r.Outcomes}, {"effect_keys", r.EffectKeys}} {
		switch {
		case age.days == 0:
		case r.Bodies == 0:
			bad = append(bad, &Problem{Path: "retention." + age.name, Msg: "is set, but retention.bodies keeps events for ever, and this is never forgotten before them: set retention.bodies, or leave this out"})
		case age.days < r.Bodies:
			bad = append(bad, &Problem{Path: "retention." + age.name, Msg: fmt.Sprintf("%d days is less than retention.bodies (%d), and this is never forgotten before the events: raise it, or set 0 to keep it for ever",
				age.days, r.Bodies)})
		}
	}
	return errors.Join(bad...)
}

// checkFiles opens every file that a daemon will need besides those of secrets, and looks where it will keep its own.
func checkFiles(c *Config, p purpose) error {
	files := [][2]string{{"nats.credentials", c.NATS.Credentials}, {"nats.tls.ca", c.NATS.TLS.CA}, {"nats.tls.cert", c.NATS.TLS.Cert}, {"nats.tls.key", c.NATS.TLS.Key},
		{"admin.tls.cert", c.Admin.TLS.Cert}, {"admin.tls.key", c.Admin.TLS.Key}, {"admin.tls.client_ca", c.Admin.TLS.ClientCA}}
	if p.ingest {
		files = append(files, [2]string{"ingest.tls.cert", c.Ingest.TLS.Cert}, [2]string{"ingest.tls.key", c.Ingest.TLS.Key})
	}
	var bad []error
	if p.ingest {
		bad = append(bad, CheckSpool(c.Ingest.Spool))
	}
	for _, f := range files {
		if f[1] == "" {
			continue
		}
		if err := readable(f[1]); err != nil {
			bad = append(bad, &Problem{Path: f[0], Msg: err.Error() + ": name a file that this account may read"})
		}
	}
	return errors.Join(bad...)
}

// readable reads a byte: opening alone lets folders pass.
func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = f.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s is empty", path)
	}
	return errors.Join(err, f.Close())
}

func newValidator() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(yamlName)
	rules := map[string]func(string) bool{
		"hostport":      func(s string) bool { return splitHostPort(s) == nil },
		"source_name":   sourceName.MatchString,
		"schedule_name": sourceName.MatchString,
		"step_name":     captureName.MatchString,
		"public_url":    func(s string) bool { return checkPublicURL(s) == nil },
		"api_url":       func(s string) bool { return checkAPIURL(s) == nil },
		"network":       func(s string) bool { _, err := parseNetwork(s); return err == nil },
		"provider":      func(s string) bool { _, ok := all.Named(s); return ok },
	}
	for name, rule := range rules {
		if err := v.RegisterValidation(name, func(f validator.FieldLevel) bool { return rule(f.Field().String()) }); err != nil {
			panic(err) // a rule's name is misspelt above
		}
	}
	return v
}

// splitHostPort wants host:port with a port from 0 (any free one) to 65535; the host may be empty (every address).
func splitHostPort(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %d: %w", n, err)
	}
	return nil
}

// Loopback tells whether only this machine reaches an address.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckAdminListen wants host:port.
func CheckAdminListen(address string) error {
	if err := splitHostPort(address); err != nil {
		return fmt.Errorf("admin address %q: write host:port, e.g. %s", address, DefaultAdminListen)
	}
	return nil
}

// checkPublicURL wants an address that a provider can be given.
func checkPublicURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Host == "":
		return fmt.Errorf("%q is no whole address: write it as the provider has it, e.g. https://hooks.example/webhooks/twilio", address)
	case u.User != nil, u.Fragment != "":
		return fmt.Errorf("%s: an address with a password or a # part is not signed as it stands: leave those out", RedactURL(address))
	}
	return nil
}

// dotted makes sources.shop.secrets.0.name of Config.sources[shop].secrets[0].name.
func dotted(namespace string) string {
	_, path, _ := strings.Cut(namespace, ".")
	return strings.NewReplacer("[", ".", "]", "").Replace(path)
}

// explain says in words what a rule of the validator wants. Values are shown only where no secret can be one.
func explain(f validator.FieldError) string {
	switch f.Tag() {
	case "required":
		return "is not set" + map[string]string{"provider": ": name one of " + providerNames(), "secrets": ": a source needs at least one",
			"job": ": name what is to be done, e.g. replay", "cron": ": say when, e.g. 30 3 * * * for half past three each day"}[f.Field()]
	case "required_with":
		return "is not set: cert and key go together"
	case "gte":
		return fmt.Sprintf("%v is too small: at least %s", f.Value(), bound(f))
	case "lte":
		return fmt.Sprintf("%v is too large: at most %s", f.Value(), bound(f))
	case "min":
		return "is empty: give at least " + f.Param()
	case "max":
		return "is too long: at most " + f.Param() + " characters"
	case "unique":
		return "two of them have one name: each needs its own, since the name tells which one matched"
	case "oneof":
		return fmt.Sprintf("%q is not known: write one of %s", f.Value(), strings.ReplaceAll(f.Param(), " ", ", "))
	case "hostport":
		return fmt.Sprintf("%q is no address: write host:port, e.g. 127.0.0.1:8080", f.Value())
	case "public_url":
		return checkPublicURL(fmt.Sprint(f.Value())).Error()
	case "step_name":
		return fmt.Sprintf("%q: a step is named with a to z, 0 to 9 and _, beginning with a letter", f.Value())
	case "api_url":
		return checkAPIURL(string(f.Value().(URL))).Error()
	case "network":
		_, err := parseNetwork(fmt.Sprint(f.Value()))
		return err.Error()
	case "source_name":
		return fmt.Sprintf("source name %q: use a to z, 0 to 9, - and _, at most 63 characters, beginning with a letter or digit", f.Value())
	case "schedule_name":
		return fmt.Sprintf("schedule name %q: use a to z, 0 to 9, - and _, at most 63 characters, beginning with a letter or digit", f.Value())
	case "provider":
		return unknownProvider(fmt.Sprint(f.Value()))
	}
	return "is not valid (" + f.Tag() + ")"
}

// bound writes a limit in the setting's own unit.
func bound(f validator.FieldError) string {
	n, err := strconv.ParseInt(f.Param(), 10, 64)
	if err != nil {
		return f.Param()
	}
	switch f.Type() {
	case reflect.TypeFor[time.Duration]():
		return time.Duration(n).String()
	case reflect.TypeFor[Bytes]():
		return Bytes(n).String()
	}
	return f.Param()
}

func providerNames() string { return strings.Join(allProviders(), ", ") }

func allProviders() (names []string) {
	for _, p := range all.All() {
		names = append(names, p.Name())
	}
	return names
}

// unknownProvider says which provider is meant, or how a sender without one is described.
func unknownProvider(name string) string {
	if one := meant(name, allProviders()); one != "" {
		return fmt.Sprintf("provider %q is not known; did you mean %s? There are %s", name, one, providerNames())
	}
	return fmt.Sprintf("provider %q is not known: name one of %s. A sender without a provider of its own is described with provider: hmac, "+
		"or with standardwebhooks where it signs that way; docs/senders.md has the settings of many", name, providerNames())
}
