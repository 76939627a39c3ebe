-- Keeps which parts of a list a sweep has passed over, since they could not be read: nothing of them is proven, and what is here of them is no ghost.
-- Locks: ACCESS EXCLUSIVE on sweeps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps ADD COLUMN passed_over jsonb NOT NULL DEFAULT '[]';
COMMENT ON COLUMN sweeps.passed_over IS 'parts of the list that could not be read: part, why, and whether its beginning was';
