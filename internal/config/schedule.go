package config

import (
	"errors"
)

// Schedule is a job that is asked for by a clock.
type Schedule struct {
	// Job is what is asked for: replay, retry, retention or reconcile.
	Job string `yaml:"job" validate:"required"`
	// Cron is when, in five fields: minute, hour, day of month, month, day of week, e.g. "30 3 * * *"; or @hourly, @daily, @weekly,
	// @monthly, @yearly; in quotes where it begins with * or @. Where clocks are put forward, what falls into the gap is due right after it; where they are put back, a time that
	// comes twice is due once. What has * for the hour goes by the time that passes.
	Cron string `yaml:"cron" validate:"required"`
	// TimeZone is the zone of cron, by its name in the IANA database, e.g. Europe/Berlin.
	TimeZone string `yaml:"time_zone" default:"UTC"`
	// Overlap is what becomes of a planned time at which a run of the schedule is still open: skip (it passes by, and is counted) or queue
	// (its run waits for the end of the other; one at most).
	Overlap string `yaml:"overlap" default:"skip" validate:"oneof=skip queue"`
	// Missed is what becomes of planned times that nobody was there to see for more than a minute: run (one run for all of them) or skip.
	Missed string `yaml:"missed" default:"run" validate:"oneof=run skip"`
	// Parameters are what the job is asked to do, as the flags of its command with _ for -, e.g. {source: stripe, since: 2h}, or {bodies: 30}.
	// Times that are relative count from when the run is entered. The ages of the section
	// retention say nothing of a schedule's; its export does, unless the schedule has one of its own ({bodies: 30, export: /srv/archive}).
	Parameters map[string]string `yaml:"parameters"`
}

// checkSchedules finds expressions and zones that cannot be used. What the job makes of its parameters is the job's matter.
func checkSchedules(c *Config) error {
	var bad []error
	for _, s := range c.Planned() {
		cron, zone := s.Path+".cron", s.Path+".time_zone"
		if c.Schedules[s.Name] == nil { // of a source, whose schedules have one zone
			cron, zone = s.Path, "sources."+s.Parameters["source"]+".reconcile.time_zone"
		}
		bad = append(bad, checkPlanned(&s, cron, zone))
	}
	return errors.Join(bad...)
}

// Locate adds to each Problem of err the file and the line, or the variable, where the setting was made.
func (c *Config) Locate(err error) error {
	if c.places == nil {
		return err
	}
	return c.places.wrap(err)
}
