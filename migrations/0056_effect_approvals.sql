-- Keeps until when an effect can be approved, so that what is past it is begun by nobody, whether a processor has ended it or not; and tells from when ages of effects count.
-- Locks: ACCESS EXCLUSIVE on effects for a moment, and SHARE while the indexes are built: nothing is planned meanwhile.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE effects ADD COLUMN expires_at timestamptz;
COMMENT ON COLUMN effects.expires_at IS 'until when it can be approved; null: its rule had no approval_expires when it was planned, or nothing had to be approved';
DROP INDEX effects_waiting;
CREATE INDEX effects_expiring ON effects (expires_at) WHERE state = 'waiting' AND expires_at IS NOT NULL;
CREATE INDEX effects_waiting ON effects (rule, planned_at) WHERE state = 'waiting' AND expires_at IS NULL;
COMMENT ON COLUMN effects.tried_since IS 'the first attempt of its next step since the step before was done or a person had it go on, from when the age of its retries counts; null: there was none yet';
COMMENT ON COLUMN effect_steps.known_since IS 'when the first attempt was reserved that may have been done; null: planned_at of its effect, or reserved_at where there was one attempt';
