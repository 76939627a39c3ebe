-- Counts how often each effect was taken, so that what comes late of one attempt is not told from another's by the process alone, which may be the same.
-- Locks: ACCESS EXCLUSIVE on effects, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE effects ADD COLUMN claims bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN effects.claims IS 'how often it was taken; what came of an attempt is recorded only while no later one was begun';
