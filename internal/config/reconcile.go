package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/timetable"
)

// Reconcile sets when Postern compares a source with the provider's API. Each expression has five
// fields, as in schedules, and becomes a separate schedule, e.g. stripe.events. It reconciles all
// known accounts of the source, except those that own_account and exclude leave out.
type Reconcile struct {
	// Events are the planned times of comparing the log with the events that the provider sent,
	// e.g. "*/15 * * * *". The API must list events (Stripe; GitHub with api.hooks). Postern
	// appends missing events.
	Events string `yaml:"events,omitempty"`
	// Objects are the planned times of comparing the mirror with the objects that the API lists,
	// e.g. "0 3 * * *". If the API can list recent changes, Postern compares only those, and does
	// not find deletions. It repairs differences.
	Objects string `yaml:"objects,omitempty"`
	// FullScan are the planned times of comparing the mirror with all objects that the API lists,
	// e.g. "0 4 * * 0". If the API cannot list recent changes, objects does the same.
	FullScan string `yaml:"full,omitempty"`
	// TimeZone is the time zone of these expressions, by its name in the IANA database, e.g.
	// Europe/Berlin.
	TimeZone string `yaml:"time_zone,omitempty" unset:"UTC"`
	// OwnAccount says whether Postern reconciles the key's own account on schedule and with
	// --all-accounts. Set it to false if the endpoint delivers only events of connected accounts
	// (Stripe Connect). Otherwise this source would also mirror the platform's own objects, which
	// the source of the platform's own endpoint mirrors too.
	OwnAccount *bool `yaml:"own_account,omitempty" unset:"true"`
	// Exclude are other accounts that Postern does not reconcile, by the provider's names, e.g. an
	// account that was disconnected permanently. Metrics of completeness ignore these accounts.
	// `postern reconcile SOURCE --account` still reads them.
	Exclude []string `yaml:"exclude,omitempty" validate:"unique,dive,required"`
}

// excludedAccounts returns the excluded accounts, "" for the key's own.
func (r *Reconcile) excludedAccounts() []string {
	if r.OwnAccount == nil || *r.OwnAccount {
		return r.Exclude
	}
	return append([]string{""}, r.Exclude...)
}

// NamedSchedule is one of the section schedules, or one that a source's section reconcile defines.
// Path is its setting.
type NamedSchedule struct {
	Name, Path string
	*Schedule
}

// AllSchedules returns those of the section schedules, by name, and then those of the sources. The
// names of the latter contain a dot, which configured names cannot.
func (c *Config) AllSchedules() (all []NamedSchedule) {
	for _, name := range sortedKeys(c.Schedules) {
		all = append(all, NamedSchedule{Name: name, Path: "schedules." + name, Schedule: c.Schedules[name]})
	}
	for _, name := range sortedKeys(c.Sources) {
		all = append(all, c.Sources[name].Reconcile.schedules(name)...)
	}
	return all
}

// schedules returns the schedules of a source.
func (r *Reconcile) schedules(source string) (all []NamedSchedule) {
	for _, one := range []struct {
		what, cron string
		parameters map[string]string
	}{
		{"events", r.Events, map[string]string{"objects": "false"}},
		{"objects", r.Objects, map[string]string{"objects": "true"}},
		{"full", r.FullScan, map[string]string{"objects": "true", "full": "true"}},
	} {
		if one.cron == "" {
			continue
		}
		s := &Schedule{Job: "reconcile", Cron: one.cron, TimeZone: r.TimeZone, Parameters: one.parameters}
		s.Parameters["source"], s.Parameters["all_accounts"] = source, "true"
		completeSchedule(s)
		all = append(all, NamedSchedule{Name: source + "." + one.what, Path: "sources." + source + ".reconcile." +
			one.what,
			Schedule: s})
	}
	return all
}

// unboundedReadWarnings reports sources that are reconciled on schedule without a monthly limit,
// where the provider limits an account's reads.
func (c *Config) unboundedReadWarnings() (all []string) {
	planned := map[string]bool{}
	for _, s := range c.AllSchedules() {
		if s.Job == "reconcile" {
			planned[s.Parameters["source"]] = true
		}
	}
	for _, name := range sortedKeys(c.Sources) {
		p, _ := c.Sources[name].provider(name)
		if limiter, ok := p.(provider.CallLimiter); ok && planned[name] && c.Sources[name].API.MonthlyCalls == 0 {
			all = append(all, fmt.Sprintf("sources.%s.api.monthly: is not set, so the number of reads of the "+
				"source's schedules is not limited: %s limits an account's reads, including those of your own "+
				"programs, to at least %d in thirty days, more for accounts with more transactions. "+
				"Set the number that your programs do not need, e.g. monthly: %d, or a very large number "+
				"if you know that there are enough (docs/how-to/reconcile-and-repair.md)", name, p.Name(),
				limiter.CallLimit(), limiter.CallLimit()/2))
		}
	}
	return all
}

// Lists reports whether the API, as configured, lists events and objects. Both are false where no
// API is configured.
func (e *Endpoint) Lists() (events, objects bool) {
	if e.API == nil || e.Reader == nil {
		return false, false
	}
	_, listed := e.Reader.(provider.EventLister)
	_, timed := e.Reader.(provider.TimedLister)
	_, sent := e.Reader.(provider.DeliveryLister)
	lister, ok := e.Reader.(provider.ObjectLister)
	return listed || timed || sent && len(e.API.Webhooks) > 0, ok &&
		len(lister.Lists(e.Source, e.API, e.Source.Account)) > 0
}

// checkReconcile requires, for a source with a section reconcile, an API that lists what is
// reconciled. The expressions are checked with the schedules.
func (s *Source) checkReconcile(name string, e *Endpoint) error {
	if settings.IsZero(s.Reconcile) {
		return nil
	}
	path := "sources." + name + ".reconcile"
	if e.API == nil {
		return &settings.Problem{Path: path, Msg: "needs a section api, with the key for the provider's API"}
	}
	var bad []error
	want := func(what, cron string, ok bool, msg string) {
		if cron != "" && !ok {
			bad = append(bad, &settings.Problem{Path: path + "." + what, Msg: msg})
		}
	}
	events, objects := e.Lists()
	want("events", s.Reconcile.Events, events, fmt.Sprintf("the API of %s lists no events (GitHub's lists deliveries "+
		"of the webhooks in api.hooks; a described one lists those of api.events): reconcile objects instead",
		e.Provider.Name()))
	for what, cron := range map[string]string{"objects": s.Reconcile.Objects, "full": s.Reconcile.FullScan} {
		want(what, cron, objects, fmt.Sprintf("the API of %s lists no objects with this configuration (GitHub's "+
			"lists those of api.repositories, a described one those of types with a list)", e.Provider.Name()))
	}
	return errors.Join(append(bad, s.checkExclude(path, e)...)...)
}

// checkExclude requires accounts that the key can read, by the provider's names, and that at least
// one account remains.
func (s *Source) checkExclude(path string, e *Endpoint) (bad []error) {
	problem := func(setting, msg string, args ...any) {
		bad = append(bad, &settings.Problem{Path: path + "." + setting, Msg: fmt.Sprintf(msg, args...)})
	}
	_, sited := e.Reader.(provider.BaseURLReader)
	one := sited || e.Reader.CredentialCheck(e.API, "another").Account != "another"
	if one && s.Reconcile.OwnAccount != nil {
		problem("own_account", "a key of %s belongs to one account, and only that one is reconciled: leave this out",
			e.Provider.Name())
	}
	for i, account := range s.Reconcile.Exclude {
		setting := fmt.Sprintf("exclude.%d", i)
		switch of := e.Reader.CredentialCheck(e.API, account).Account; {
		case one:
			problem(setting, "a key of %s belongs to one account, and only that one is reconciled: leave this out",
				e.Provider.Name())
		case account == "*":
			problem(setting, "'*' is not an account: name each account; to reconcile none, leave the section out")
		case account == s.Account:
			problem(setting, "%s is the source's own account: write own_account: false", account)
		case of == "":
			problem(setting, "%s is a part of the key's own account: write own_account: false, which "+
				"excludes all of it", account)
		case of != account:
			problem(setting, "%s is a part of account %s: name that account, which excludes all of it", account, of)
		}
	}
	left := func(account string) bool { return !slices.Contains(s.Reconcile.Exclude, account) }
	if len(bad) == 0 && s.Reconcile.OwnAccount != nil && !*s.Reconcile.OwnAccount && s.Account+strings.Join(s.Accounts,
		"") != "" && !slices.ContainsFunc(s.Accounts, left) {
		problem("own_account", "excludes every account, because the source accepts no other: name the "+
			"connected ones under accounts, or '*' for any; or remove the section")
	}
	return bad
}

// checkNamedSchedule returns the problems of the expression and the time zone.
func checkNamedSchedule(s *NamedSchedule, cron, zone string) error {
	if _, err := timetable.Zone(s.TimeZone); err != nil {
		return &settings.Problem{Path: zone, Msg: err.Error()}
	}
	if _, err := timetable.Parse(s.Cron, s.TimeZone); err != nil && s.Cron != "" {
		return &settings.Problem{Path: cron, Msg: err.Error()}
	}
	return nil
}
