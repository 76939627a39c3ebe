-- Lets jobs be asked for by a clock: what is planned, as the processes that plan it have it from their configuration, and which planned time each run is
-- of. One planned time is one run, and one key of somebody else's scheduler is one run, however many processes ask. What has ended is told on
-- the feed of runs; what ended before this migration is taken for told.
-- Locks: ACCESS EXCLUSIVE on runs, which is small, for a moment; SHARE on outcomes while an index is made, which reads the table once: applying waits as
-- long. It fails after 5 s of waiting for the lock and can be run again.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE TABLE schedules (
  name         text PRIMARY KEY,
  job          text NOT NULL,
  cron         text NOT NULL,
  time_zone    text NOT NULL,
  overlap      text NOT NULL CHECK (overlap IN ('skip', 'queue')),
  missed       text NOT NULL CHECK (missed IN ('run', 'skip')),
  parameters   jsonb NOT NULL,
  planned_at   timestamptz NOT NULL,
  skipped      bigint NOT NULL,
  skipped_at   timestamptz,
  skipped_why  text NOT NULL,
  succeeded_at timestamptz,
  paused_at    timestamptz,
  paused_by    text NOT NULL,
  seen_at      timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON COLUMN schedules.planned_at IS 'everything planned up to then was decided: entered as a run, or skipped';
COMMENT ON COLUMN schedules.seen_at IS 'when a process last said that its configuration has this schedule';
ALTER TABLE schedules OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE ON schedules TO postern_processor;
GRANT SELECT, UPDATE ON schedules TO postern_operator;
ALTER TABLE runs ADD COLUMN schedule text, ADD COLUMN planned_at timestamptz, ADD COLUMN once_key text, ADD COLUMN once_said text,
  ADD COLUMN told_at timestamptz, ADD COLUMN tell_after timestamptz;
UPDATE runs SET told_at = ended_at WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_planned ON runs (schedule, planned_at) WHERE planned_at IS NOT NULL;
CREATE UNIQUE INDEX runs_once ON runs (once_key) WHERE once_key IS NOT NULL;
CREATE INDEX runs_scheduled ON runs (schedule, run) WHERE schedule IS NOT NULL;
CREATE INDEX runs_scheduled_open ON runs (schedule) WHERE schedule IS NOT NULL AND ended_at IS NULL;
CREATE INDEX runs_unended ON runs (job, status) WHERE ended_at IS NULL;
CREATE INDEX runs_untold ON runs (run) WHERE ended_at IS NOT NULL AND told_at IS NULL;
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX outcomes_of_runs ON outcomes (run) WHERE run > 0;
COMMENT ON COLUMN runs.planned_at IS 'the planned time that the run is of; null where somebody asked';
COMMENT ON COLUMN runs.once_key IS 'the key of whoever asked: what asks with it again gets this run';
COMMENT ON COLUMN runs.once_said IS 'what was asked for under the key, in the words of whoever asked';
COMMENT ON COLUMN runs.told_at IS 'when the end of the run was published; null until then';
GRANT INSERT ON runs TO postern_processor;
