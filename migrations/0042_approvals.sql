-- Keeps each approval of a run with what was approved: a run may be proposed for one thing after another, and a person's word is good for that alone which was shown.
-- Locks: ACCESS EXCLUSIVE on runs, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE runs ADD COLUMN proposal text NOT NULL DEFAULT '';
COMMENT ON COLUMN runs.proposal IS 'what is to be approved, in the job''s own terms; the detail says it in words';
ALTER TABLE runs ADD COLUMN approvals jsonb NOT NULL DEFAULT '[]';
COMMENT ON COLUMN runs.approvals IS 'what was approved, as it was shown, by whom, why and when';
