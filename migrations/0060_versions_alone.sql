-- Keeps of each sweep whether its list told versions alone, so that what a run says of itself stays as it was.
-- Locks: ACCESS EXCLUSIVE on sweeps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps ADD COLUMN versions_alone boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN sweeps.versions_alone IS 'the whole list told versions that not every change is known to move: what changed under one is not known';
