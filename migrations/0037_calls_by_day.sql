-- Keeps how many calls were made for an account on each day, so that they can be held within an allocation of thirty days.
-- Locks: ACCESS EXCLUSIVE on budgets, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE budgets ADD COLUMN calls jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN budgets.calls IS 'calls by the day on which they began (UTC, counted from 1970-01-01): of the last day with a call and the thirty before it';
