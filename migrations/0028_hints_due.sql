-- Has a source find its hints that are due without those of others, and without those that are not.
-- Locks: SHARE on hints while it is indexed, so that no hint is written: below a second for a million.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE INDEX hints_due_of_source ON hints (source, due);
DROP INDEX hints_due;
