-- Finds effects that wait for an approval by their rule and age, so that those that nobody approved in time expire.
-- Locks: SHARE on effects while the index is built: nothing is planned meanwhile.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE INDEX effects_waiting ON effects (rule, planned_at) WHERE state = 'waiting';
COMMENT ON COLUMN effects.facts IS 'what the templates of its steps see: old and new state, object and event; null once redacted, or forgotten by retention.effects';
COMMENT ON COLUMN effect_steps.request IS 'what is sent, the same at each attempt: method, path, headers and body, without the destination''s own headers; null once redacted or forgotten';
