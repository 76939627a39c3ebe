-- Keeps from when two ages of effects count: how long another side may have known a step's key, and how long an effect has been tried since somebody last had it tried.
-- Locks: ACCESS EXCLUSIVE on effect_steps and effects, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE effect_steps ADD COLUMN known_since timestamptz;
COMMENT ON COLUMN effect_steps.known_since IS 'when the first attempt was reserved that may have been done; null: reserved_at';
ALTER TABLE effects ADD COLUMN tried_since timestamptz;
COMMENT ON COLUMN effects.tried_since IS 'when a person last had it go on, from when the age of its retries counts; null: planned_at';
