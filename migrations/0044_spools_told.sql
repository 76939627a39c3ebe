-- Keeps of each spool since when it is known, when its gateway last told of it, and what it told was in it, so that a person can say whether it is gone for good.
-- Locks: ACCESS EXCLUSIVE on spools, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE spools ADD COLUMN known_at timestamptz;
ALTER TABLE spools ALTER COLUMN known_at SET DEFAULT clock_now();
ALTER TABLE spools ADD COLUMN told_at timestamptz;
ALTER TABLE spools ADD COLUMN deliveries bigint;
ALTER TABLE spools ADD COLUMN bytes bigint;
COMMENT ON TABLE spools IS 'spools of gateways that run, or ended without the time to say that nothing is left; postern spool forget takes away the row of one that is gone for good';
COMMENT ON COLUMN spools.known_at IS 'since when the row is there; null: since before that was kept';
COMMENT ON COLUMN spools.told_at IS 'when the gateway last told of it, full or empty; null: by a gateway of before that was kept';
COMMENT ON COLUMN spools.deliveries IS 'how many were in it at told_at, and bytes how large they were';
