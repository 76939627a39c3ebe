-- Lets a run that meets trouble be put off for longer each time, so that it keeps no other run from being carried out.
-- Locks: ACCESS EXCLUSIVE on checkpoints, which is small, for a moment; no row is written. It fails after 5 s of waiting for the lock and can be run again.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE checkpoints ADD COLUMN troubles integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN checkpoints.troubles IS 'how often in a row a run was put off, without getting on in between';
