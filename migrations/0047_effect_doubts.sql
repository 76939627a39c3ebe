-- Keeps with each step of an effect what a person must know who looks at it without its rule: how a lost answer of it is cleared up, and whether it can be undone.
-- Locks: ACCESS EXCLUSIVE on effect_steps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE effect_steps ADD COLUMN doubt text NOT NULL DEFAULT 'key' CHECK (doubt IN ('key', 'check', 'person'));
ALTER TABLE effect_steps ADD COLUMN undoable boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN effect_steps.doubt IS 'what clears up a lost answer: the step is sent again under its key, the other side is asked, or a person says what happened';
COMMENT ON COLUMN effect_steps.undoable IS 'its rule said how it is undone when it was sent';
