-- Keeps which of the objects that a sweep has listed counted as wrong when they were met first, so that none counts as mended that did not.
-- Locks: ACCESS EXCLUSIVE on listed, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE listed ADD COLUMN odd boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN listed.odd IS 'the object was missing, behind, different or a ghost when it was met first, and counts as that';
