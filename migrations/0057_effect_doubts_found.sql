-- Finds steps in doubt by themselves, whatever becomes of their effects and however many others need a person; and keeps what tells the alerts of two installations apart.
-- Locks: SHARE on effect_steps while the index is built: no step is begun or ended meanwhile; ACCESS EXCLUSIVE on notifications, which has few rows and is written anew.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE INDEX effect_steps_doubtful ON effect_steps (effect) WHERE state = 'unknown' OR state = 'reserved' AND known_since < reserved_at;
ALTER TABLE notifications ADD COLUMN seed uuid NOT NULL DEFAULT gen_random_uuid();
COMMENT ON COLUMN notifications.seed IS 'made once, of the ids under which is told, so that another installation has others for the same name';
