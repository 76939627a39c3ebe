-- Counts what a sweep has found alive by its name and in no list.
-- Locks: ACCESS EXCLUSIVE on sweeps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps ADD COLUMN hidden bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN sweeps.hidden IS 'of those that were checked, the ones that were not listed, and were found alive by their names';
