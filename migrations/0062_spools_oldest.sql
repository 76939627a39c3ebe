-- Keeps of each spool since when the oldest delivery in it waits, as its gateway told, so that what came a moment ago is not taken for what has waited since the spool was last empty.
-- Locks: ACCESS EXCLUSIVE on spools, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE spools ADD COLUMN oldest_at timestamptz;
COMMENT ON COLUMN spools.oldest_at IS 'when the oldest of what was in it at told_at was acknowledged, or before; null: nothing was in it, or nobody knows';
