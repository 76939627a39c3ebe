-- Lets a run wait until a person approves it, and has failed and dead outcomes of a run tried again: found by run, and kept in hand from where they are chosen
-- to where they are counted, since an outcome that was mended is not found again.
-- The index of dead outcomes stays: the list of all runs' dead outcomes walks it by event.
-- Locks: ACCESS EXCLUSIVE on runs, briefly; SHARE on outcomes while its index is made, which reads the table once: applying waits as long. It fails after 5 s of
-- waiting for either lock and can be run again.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE runs
  DROP CONSTRAINT runs_status_check,
  ADD CONSTRAINT runs_status_check CHECK (status IN ('proposed', 'waiting', 'running', 'paused', 'done', 'failed', 'cancelled')),
  ADD COLUMN approved_by text NOT NULL DEFAULT '',
  ADD COLUMN approval text NOT NULL DEFAULT '',
  ADD COLUMN hand bigint[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN runs.approved_by IS 'who let a proposed run begin; empty for one that needed nobody';
COMMENT ON COLUMN runs.approval IS 'why it was let begin';
COMMENT ON COLUMN runs.hand IS 'events that were chosen and are not counted yet, for a job that would not choose them again';
CREATE INDEX outcomes_unfinished ON outcomes (run, event_id) WHERE status IN ('failed', 'dead');
