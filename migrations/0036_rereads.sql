-- Keeps how often a list was begun again for what a sweep had in hand, and which of the objects that it has listed are left, so that each counts once however often it is met.
-- Locks: ACCESS EXCLUSIVE on sweeps and listed, for a moment each; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps ADD COLUMN rereads integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN sweeps.rereads IS 'how often the list was begun again for what was in hand';
ALTER TABLE listed ADD COLUMN remains boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN listed.remains IS 'the object differed, and is left';
GRANT UPDATE ON listed TO postern_processor;
