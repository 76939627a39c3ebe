-- Keeps with each step of an effect what its rule wants of the answer, so that a person who says that it was done can be asked for that.
-- Locks: ACCESS EXCLUSIVE on effect_steps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE effect_steps ADD COLUMN captures text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN effect_steps.captures IS 'the names under which its rule captures what the answer says, as of when it was sent';
