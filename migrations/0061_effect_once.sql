-- Keeps with each step of an effect whether its rule had it sent again where the other side does not know of it, so that a rule that was edited meanwhile does not.
-- Locks: ACCESS EXCLUSIVE on effect_steps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE effect_steps ADD COLUMN once boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN effect_steps.once IS 'its rule said when it was sent that it is not sent again by itself where the other side does not know of it';
