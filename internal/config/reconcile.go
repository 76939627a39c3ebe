package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/timetable"
)

// Reconcile says when a source is held against its provider's API. Each expression is five fields as in schedules, and a schedule of its own, e.g.
// stripe.events, which reconciles all accounts of the source that are known, but for those of own and except.
type Reconcile struct {
	// Events is when the log is held against what the provider says it has sent, e.g. "*/15 * * * *", where the API lists that (Stripe; GitHub with
	// api.hooks). What is missing is appended.
	Events string `yaml:"events,omitempty"`
	// Objects is when the mirror is held against what the API lists, e.g. "0 3 * * *"; where the API tells what changed, against that alone, which shows
	// no deletion. What differs is mended.
	Objects string `yaml:"objects,omitempty"`
	// Full is when it is held against all that the API lists, e.g. "0 4 * * 0". Where the API cannot tell what changed, objects is as much.
	Full string `yaml:"full,omitempty"`
	// TimeZone is the zone of these, by its name in the IANA database, e.g. Europe/Berlin.
	TimeZone string `yaml:"time_zone,omitempty" shown:"UTC"`
	// Own says whether the key's own account is reconciled by the clock and with --all-accounts. Set it to false where the endpoint delivers events of
	// connected accounts alone (Stripe Connect): what the API lists of the platform itself would be mirrored too, beside the source of its own endpoint.
	Own *bool `yaml:"own,omitempty" shown:"true"`
	// Except are other accounts that are not, as the provider names them, e.g. one that was disconnected for good. What was proven of them counts no more
	// in metrics. postern reconcile SOURCE --account reads them all the same.
	Except []string `yaml:"except,omitempty" validate:"unique,dive,required"`
}

// except are the accounts left out, "" for the key's own.
func (r *Reconcile) except() []string {
	if r.Own == nil || *r.Own {
		return r.Except
	}
	return append([]string{""}, r.Except...)
}

// Planned is a schedule: one of the section schedules, or one that a source's section reconcile stands for. Path is where it is set.
type Planned struct {
	Name, Path string
	*Schedule
}

// Planned are all schedules: those of the section schedules, by name, and then those of the sources. The names of the latter have a dot, which no name that is given has.
func (c *Config) Planned() (all []Planned) {
	for _, name := range sortedKeys(c.Schedules) {
		all = append(all, Planned{Name: name, Path: "schedules." + name, Schedule: c.Schedules[name]})
	}
	for _, name := range sortedKeys(c.Sources) {
		all = append(all, c.Sources[name].Reconcile.planned(name)...)
	}
	return all
}

// planned are a source's schedules.
func (r *Reconcile) planned(source string) (all []Planned) {
	for _, one := range []struct {
		what, cron string
		parameters map[string]string
	}{
		{"events", r.Events, map[string]string{"objects": "false"}},
		{"objects", r.Objects, map[string]string{"objects": "true"}},
		{"full", r.Full, map[string]string{"objects": "true", "full": "true"}},
	} {
		if one.cron == "" {
			continue
		}
		s := &Schedule{Job: "reconcile", Cron: one.cron, TimeZone: r.TimeZone, Parameters: one.parameters}
		s.Parameters["source"], s.Parameters["all_accounts"] = source, "true"
		completeSchedule(s)
		all = append(all, Planned{Name: source + "." + one.what, Path: "sources." + source + ".reconcile." + one.what, Schedule: s})
	}
	return all
}

// unbounded tells of sources that are reconciled by the clock and have no bound, where the provider allots an account its reads.
func (c *Config) unbounded() (all []string) {
	planned := map[string]bool{}
	for _, s := range c.Planned() {
		if s.Job == "reconcile" {
			planned[s.Parameters["source"]] = true
		}
	}
	for _, name := range sortedKeys(c.Sources) {
		p, _ := c.Sources[name].provider(name)
		if allotted, ok := p.(provider.Allotted); ok && planned[name] && c.Sources[name].API.Monthly == 0 {
			all = append(all, fmt.Sprintf("sources.%s.api.monthly: is not set, so that nothing bounds what the source's schedules read: %s allots an account its reads, those of your own programs among them, %d in thirty days at least and more by its transactions. "+
				"Write what your programs can spare, e.g. monthly: %d of the least, or a number that it will not reach where you know that there are plenty (docs/reconciliation.md, What it costs)", name, p.Name(), allotted.Allotted(), allotted.Allotted()/2))
		}
	}
	return all
}

// Lists says whether the API, as it is configured, lists events and objects. Both are false where no API is read.
func (e *Endpoint) Lists() (events, objects bool) {
	if e.API == nil || e.Reader == nil {
		return false, false
	}
	_, listed := e.Reader.(provider.EventLister)
	_, timed := e.Reader.(provider.TimedLister)
	_, sent := e.Reader.(provider.DeliveryLister)
	lister, ok := e.Reader.(provider.ObjectLister)
	return listed || timed || sent && len(e.API.Hooks) > 0, ok && len(lister.Lists(e.Source, e.API, e.Source.Account)) > 0
}

// checkReconcile wants of a source with a section reconcile an API that tells what is to be reconciled. Its expressions are checked with the schedules.
func (s *Source) checkReconcile(name string, e *Endpoint) error {
	if isZero(s.Reconcile) {
		return nil
	}
	path := "sources." + name + ".reconcile"
	if e.API == nil {
		return &Problem{Path: path, Msg: "needs a section api beside it, with the key that the provider's API is read with"}
	}
	var bad []error
	want := func(what, cron string, ok bool, msg string) {
		if cron != "" && !ok {
			bad = append(bad, &Problem{Path: path + "." + what, Msg: msg})
		}
	}
	events, objects := e.Lists()
	want("events", s.Reconcile.Events, events, fmt.Sprintf("the API of %s lists no events (GitHub's lists deliveries, of the webhooks under api.hooks; a described one those of api.events): reconcile objects instead", e.Provider.Name()))
	for what, cron := range map[string]string{"objects": s.Reconcile.Objects, "full": s.Reconcile.Full} {
		want(what, cron, objects, fmt.Sprintf("the API of %s lists no objects as it is configured here (GitHub's of api.repositories, a described one where a type has a list)", e.Provider.Name()))
	}
	return errors.Join(append(bad, s.checkExcept(path, e)...)...)
}

// checkExcept wants accounts that the key can act for, by the names that its provider has for them, and that some are left.
func (s *Source) checkExcept(path string, e *Endpoint) (bad []error) {
	problem := func(setting, msg string, args ...any) {
		bad = append(bad, &Problem{Path: path + "." + setting, Msg: fmt.Sprintf(msg, args...)})
	}
	_, sited := e.Reader.(provider.Sited)
	one := sited || e.Reader.Control(e.API, "another").Account != "another"
	if one && s.Reconcile.Own != nil {
		problem("own", "a key of %s is of one account, which is all that is reconciled: leave this out", e.Provider.Name())
	}
	for i, account := range s.Reconcile.Except {
		setting := fmt.Sprintf("except.%d", i)
		switch of := e.Reader.Control(e.API, account).Account; {
		case one:
			problem(setting, "a key of %s is of one account, which is all that is reconciled: leave this out", e.Provider.Name())
		case account == "*":
			problem(setting, "'*' names no account: name each; to reconcile none leave the section out")
		case account == s.Account:
			problem(setting, "%s is the source's own account: write own: false", account)
		case of == "":
			problem(setting, "%s is what the mirror calls a part of the key's own account: write own: false, which leaves all of it out", account)
		case of != account:
			problem(setting, "%s is what the mirror calls a part of account %s: name that, which leaves all of it out", account, of)
		}
	}
	left := func(account string) bool { return !slices.Contains(s.Reconcile.Except, account) }
	if len(bad) == 0 && s.Reconcile.Own != nil && !*s.Reconcile.Own && s.Account+strings.Join(s.Accounts, "") != "" && !slices.ContainsFunc(s.Accounts, left) {
		problem("own", "leaves no account to reconcile, since the source takes events of no other: name the connected ones under accounts, or '*' for any; or take the section out")
	}
	return bad
}

// checkPlanned finds expressions and zones that cannot be used.
func checkPlanned(s *Planned, cron, zone string) error {
	if _, err := timetable.Zone(s.TimeZone); err != nil {
		return &Problem{Path: zone, Msg: err.Error()}
	}
	if _, err := timetable.Parse(s.Cron, s.TimeZone); err != nil && s.Cron != "" {
		return &Problem{Path: cron, Msg: err.Error()}
	}
	return nil
}
