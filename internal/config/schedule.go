package config

import (
	"errors"
)

// Schedule is a job that Postern starts on schedule.
type Schedule struct {
	// Job is the job to start: replay, retry, retention or reconcile.
	Job string `yaml:"job" validate:"required"`
	// Cron is the planned times, in five fields: minute, hour, day of month, month, day of week,
	// e.g. "30 3 * * *"; or @hourly, @daily, @weekly, @monthly, @yearly. Put it into quotes if it
	// begins with * or @. When clocks are put forward, a time that does not exist is due right
	// after the change. When clocks are put back, a time that exists twice is due once. If the hour
	// is *, the times follow elapsed time.
	Cron string `yaml:"cron" validate:"required"`
	// TimeZone is the time zone of cron, by its name in the IANA database, e.g. Europe/Berlin.
	TimeZone string `yaml:"time_zone" default:"UTC"`
	// Overlap says what happens at a planned time while a run of the schedule is still open. With
	// skip, no run starts, and Postern counts the skipped time. With queue, at most one run waits
	// until the other ends.
	Overlap string `yaml:"overlap" default:"skip" validate:"oneof=skip queue"`
	// Missed says what happens to planned times that were missed for more than a minute because no
	// processor ran. run starts one run for all of them; skip starts none.
	Missed string `yaml:"missed" default:"run" validate:"oneof=run skip"`
	// Parameters are the job's parameters: the flags of its command with _ instead of -, e.g.
	// {source: stripe, since: 2h}, or {bodies: 30}. Relative times count from when the run is
	// queued. The ages in the section retention do not apply to a schedule. Its export folder
	// applies, unless the schedule sets one ({bodies: 30, export: /srv/archive}).
	Parameters map[string]string `yaml:"parameters"`
}

// checkSchedules returns the problems of expressions and time zones. The job checks its parameters.
func checkSchedules(c *Config) error {
	var bad []error
	for _, s := range c.AllSchedules() {
		cron, zone := s.Path+".cron", s.Path+".time_zone"
		if c.Schedules[s.Name] == nil { // schedules of a source share one time zone
			cron, zone = s.Path, "sources."+s.Parameters["source"]+".reconcile.time_zone"
		}
		bad = append(bad, checkNamedSchedule(&s, cron, zone))
	}
	return errors.Join(bad...)
}

// Locate adds the file and line, or the variable, to each Problem of err.
func (c *Config) Locate(err error) error {
	if c.locator == nil {
		return err
	}
	return c.locator.locate(err)
}
