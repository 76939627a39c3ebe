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
	"github.com/postern-gateway/postern/internal/settings"
)

var captureName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

var sourceName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// checkConfig returns every setting whose value cannot be used.
func checkConfig(c *Config, p loadOptions) error {
	var bad []error
	if p.database && c.Database.URL == "" {
		detail := ""
		if variable := EnvName("database", "url"); p.missingReason(variable) != "not set" {
			detail = " (" + variable + " is " + p.missingReason(variable) + ")"
		}
		bad = append(bad, &settings.Problem{Path: "database.url", Msg: "is not set" + detail +
			": name a PostgreSQL 15 or newer here or in POSTERN_DATABASE_URL, e.g. " +
			"postgres://postern@localhost/postern (postern dev needs none: check with postern config check --dev)"})
	}
	checked := c
	if !p.secrets {
		without := *c
		without.Sources, without.Schedules, without.Destinations, without.Effects, without.Notify = nil, nil, nil, nil,
			nil
		without.Forward = nil
		checked = &without
	}
	err := newValidator().Struct(checked)
	var fields validator.ValidationErrors
	if errors.As(err, &fields) {
		for _, f := range fields {
			bad = append(bad, &settings.Problem{Path: settingPath(f.Namespace()), Msg: ruleMessage(f)})
		}
	} else if err != nil {
		bad = append(bad, err)
	}
	bad = append(bad, sharedVariables("sources", checked.Sources), sharedVariables("schedules", checked.Schedules),
		sharedVariables("destinations", checked.Destinations), sharedVariables("effects", checked.Effects),
		sharedVariables("notify", checked.Notify), sharedVariables("forward", checked.Forward),
		checkEffects(checked), checkForwards(checked), checkNotify(checked), checkBodies(checked),
		checkSchedules(checked), checkRetention(c.Retention), checkDatabaseURLs(c.Database),
		checkDurability(c.Database), checkRateLimits(checked))
	return errors.Join(bad...)
}

// checkBodies requires that the largest body fits into the memory for bodies. Otherwise the gateway
// could never accept it.
func checkBodies(c *Config) error {
	var bad []error
	want := func(path string, size settings.Bytes) {
		if size > c.Ingest.QueueBytes {
			bad = append(bad, &settings.Problem{Path: path,
				Msg: fmt.Sprintf("%s is more than ingest.queue_bytes (%s), so the gateway could not accept the "+
					"largest bodies: lower it, or raise ingest.queue_bytes",
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

// keywordValue matches the start of a connection string in key-value form: host=localhost
// dbname=postern.
var keywordValue = regexp.MustCompile(`^\s*[a-z_]+\s*=`)

// checkDatabaseURLs rejects addresses that are not PostgreSQL's. Its errors do not show an address,
// because it may contain a password.
func checkDatabaseURLs(d Database) error {
	var bad []error
	for path, address := range map[string]settings.URL{"database.url": d.URL,
		"database.maintenance_url": d.MaintenanceURL} {
		scheme, _, isURL := strings.Cut(string(address), "://")
		switch {
		case address == "", isURL && (scheme == "postgres" || scheme == "postgresql"),
			keywordValue.MatchString(string(address)):
		default:
			bad = append(bad, &settings.Problem{Path: path, Msg: "is not an address of PostgreSQL: it begins with " +
				"postgres://, e.g. postgres://postern@localhost/postern"})
		}
	}
	return errors.Join(bad...)
}

// checkDurability rejects addresses that ask for weaker commits. Postern's sessions override such
// options, so the author of the address would be misled.
func checkDurability(d Database) error {
	var bad []error
	for _, address := range []struct {
		path string
		url  settings.URL
	}{{"database.url", d.URL}, {"database.maintenance_url", d.MaintenanceURL}} {
		plain, err := url.PathUnescape(string(address.url))
		if err != nil {
			plain = string(address.url)
		}
		// PostgreSQL accepts - in place of _ in option names.
		plain = strings.ReplaceAll(strings.ToLower(plain), "-", "_")
		for _, required := range [][2]string{
			{"synchronous_commit", "which Postern sets to on for each of its sessions, because an acknowledgement " +
				"promises a durable commit"},
			{"default_transaction_isolation", "which Postern sets to read committed for each of its sessions, " +
				"because its statements need that level"},
		} {
			if strings.Contains(plain, required[0]) {
				bad = append(bad, &settings.Problem{Path: address.path, Msg: "sets " + required[0] + ", " +
					required[1] +
					": remove it"})
			}
		}
	}
	return errors.Join(bad...)
}

// checkRetention requires that nothing is deleted before the events that it belongs to.
func checkRetention(r Retention) error {
	var bad []error
	for _, age := range []struct {
		name string
		days int
	}{{"keys", r.Keys}, {"outcomes", r.Outcomes}, {"effect_keys", r.EffectKeys}} {
		switch {
		case age.days == 0:
		case r.Bodies == 0:
			bad = append(bad, &settings.Problem{Path: "retention." + age.name,
				Msg: "is set, but retention.bodies keeps events without limit, and this is never deleted before its " +
					"events: set retention.bodies, or leave this out"})
		case age.days < r.Bodies:
			bad = append(bad, &settings.Problem{Path: "retention." + age.name, Msg: fmt.Sprintf("%d days is less than "+
				"retention.bodies (%d), and this is never deleted before its events: raise it, or set 0 to keep it "+
				"without limit",
				age.days, r.Bodies)})
		}
	}
	return errors.Join(bad...)
}

// checkFiles opens the files that a daemon needs, except those of secrets, and checks the folder of
// the spool.
func checkFiles(c *Config, p loadOptions) error {
	files := [][2]string{{"nats.credentials", c.NATS.Credentials}, {"nats.tls.ca", c.NATS.TLS.CA},
		{"nats.tls.cert", c.NATS.TLS.Cert}, {"nats.tls.key", c.NATS.TLS.Key},
		{"admin.tls.cert", c.Admin.TLS.Cert}, {"admin.tls.key", c.Admin.TLS.Key},
		{"admin.tls.client_ca", c.Admin.TLS.ClientCA}}
	if p.ingest {
		files = append(files, [2]string{"ingest.tls.cert", c.Ingest.TLS.Cert},
			[2]string{"ingest.tls.key", c.Ingest.TLS.Key})
	}
	var bad []error
	if p.ingest {
		bad = append(bad, CheckSpool(c.Ingest.Spool))
	}
	for _, f := range files {
		if f[1] == "" {
			continue
		}
		if err := checkReadable(f[1]); err != nil {
			bad = append(bad, &settings.Problem{Path: f[0], Msg: err.Error() +
				": name a file that this account may read"})
		}
	}
	return errors.Join(bad...)
}

// checkReadable reads one byte, because opening a folder succeeds.
func checkReadable(path string) error {
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
	v.RegisterTagNameFunc(func(field reflect.StructField) string {
		if field.Tag.Get("yaml") == inlined {
			return inlined
		}
		return yamlName(field)
	})
	rules := map[string]func(string) bool{
		"hostport":      func(s string) bool { return splitHostPort(s) == nil },
		"source_name":   sourceName.MatchString,
		"schedule_name": sourceName.MatchString,
		"step_name":     captureName.MatchString,
		"public_url":    func(s string) bool { return checkPublicURL(s) == nil },
		"api_url":       func(s string) bool { return checkAPIAddress(s) == nil },
		"network":       func(s string) bool { _, err := parseNetwork(s); return err == nil },
		"provider":      func(s string) bool { _, ok := all.Named(s); return ok },
	}
	for name, rule := range rules {
		if err := v.RegisterValidation(name,
			func(f validator.FieldLevel) bool { return rule(f.Field().String()) }); err != nil {
			panic(err) // a validation rule's name in this function is misspelt
		}
	}
	return v
}

// splitHostPort requires host:port with a port from 0 (any free port) to 65535. An empty host means
// every address.
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

// IsLoopback reports whether an address can be reached from this machine only.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckAdminListen requires host:port.
func CheckAdminListen(address string) error {
	if err := splitHostPort(address); err != nil {
		return fmt.Errorf("admin address %q: write host:port, e.g. %s", address, DefaultAdminListen)
	}
	return nil
}

// checkPublicURL requires a complete address that a provider can be given.
func checkPublicURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Host == "":
		return errors.New("is not a complete address: write it as it is registered at the provider, e.g. " +
			"https://hooks.example/webhooks/twilio") // without the text, which may have a password
	case u.User != nil, u.Fragment != "":
		return fmt.Errorf("%s: an address with a password or a # part is not signed in that form: remove them",
			settings.MaskURL(address))
	}
	return nil
}

// settingPath converts Config.sources[shop].secrets[0].name to sources.shop.secrets.0.name.
func settingPath(namespace string) string {
	_, path, _ := strings.Cut(namespace, ".")
	return strings.NewReplacer("[", ".", "]", "", "."+inlined, "").Replace(path)
}

// ruleMessage describes what a validation rule requires. It shows the value only where that cannot
// be a secret.
func ruleMessage(f validator.FieldError) string {
	switch f.Tag() {
	case "required":
		return "is not set" + map[string]string{"provider": ": name one of " + providerNames(),
			"secrets": ": a source needs at least one",
			"job":     ": name the job, e.g. replay", "cron": ": write when it is due, e.g. 30 3 * * * for half past " +
				"three each day"}[f.Field()]
	case "required_with":
		return "is not set: cert and key are required together"
	case "gte":
		return fmt.Sprintf("%v is too small: the minimum is %s", f.Value(), limitText(f))
	case "lte":
		return fmt.Sprintf("%v is too large: the maximum is %s", f.Value(), limitText(f))
	case "min":
		return "has too few elements: give at least " + f.Param()
	case "max":
		return "is too long: at most " + f.Param() + " characters"
	case "unique":
		return "two elements have the same name: give each its own, because events record which one matched"
	case "oneof":
		return fmt.Sprintf("%q is not a known value: write one of %s", f.Value(),
			strings.ReplaceAll(f.Param(), " ", ", "))
	case "hostport":
		return fmt.Sprintf("%q is not an address: write host:port, e.g. 127.0.0.1:8080", f.Value())
	case "public_url":
		return checkPublicURL(fmt.Sprint(f.Value())).Error()
	case "step_name":
		return fmt.Sprintf("%q is not a step name: use a to z, 0 to 9 and _, beginning with a letter", f.Value())
	case "api_url":
		return checkAPIAddress(string(f.Value().(settings.URL))).Error()
	case "network":
		_, err := parseNetwork(fmt.Sprint(f.Value()))
		return err.Error()
	case "source_name":
		return fmt.Sprintf("source name %q: use a to z, 0 to 9, - and _, at most 63 characters, beginning with a "+
			"letter or digit", f.Value())
	case "schedule_name":
		return fmt.Sprintf("schedule name %q: use a to z, 0 to 9, - and _, at most 63 characters, beginning with a "+
			"letter or digit", f.Value())
	case "provider":
		return unknownProvider(fmt.Sprint(f.Value()))
	}
	return "is not valid (" + f.Tag() + ")"
}

// limitText writes a limit in the setting's unit.
func limitText(f validator.FieldError) string {
	n, err := strconv.ParseInt(f.Param(), 10, 64)
	if err != nil {
		return f.Param()
	}
	switch f.Type() {
	case reflect.TypeFor[time.Duration]():
		return time.Duration(n).String()
	case reflect.TypeFor[settings.Bytes]():
		return settings.Bytes(n).String()
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

// unknownProvider suggests the closest provider name, or how to describe a sender that has no
// provider.
func unknownProvider(name string) string {
	if one := closestName(name, allProviders()); one != "" {
		return fmt.Sprintf("provider %q does not exist; did you mean %s? The providers are %s", name, one,
			providerNames())
	}
	return fmt.Sprintf("provider %q does not exist: name one of %s. For a sender that is not in the list, use "+
		"provider: hmac, or standardwebhooks if it signs that way; docs/reference/senders.md has the settings of many "+
		"senders", name, providerNames())
}
