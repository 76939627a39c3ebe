-- Lets a sweep over all types keep which of them it has passed over since the API refuses their lists, and why, and finds the newest such sweep of a type for what is shown as proven.
-- Locks: ACCESS EXCLUSIVE on sweeps while it is read twice.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps ADD COLUMN why text NOT NULL DEFAULT '';
COMMENT ON COLUMN sweeps.why IS 'why the type is unlisted: what the API answered; empty where it is not';
ALTER TABLE sweeps DROP CONSTRAINT sweeps_phase_check;
ALTER TABLE sweeps ADD CONSTRAINT sweeps_phase_check CHECK (phase IN ('list', 'ghosts', 'graves', 'proposed', 'done', 'rare', 'unlisted'));
CREATE INDEX sweeps_unlisted ON sweeps (source, account, object_type, run) WHERE phase = 'unlisted';
