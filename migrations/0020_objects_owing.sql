-- Finds the objects that owe a look without reading the mirror. What changes look_after is no longer a HOT update; nothing else becomes slower.
-- Locks: SHARE UPDATE EXCLUSIVE on objects: applying goes on beside it. It reads the table twice and waits for transactions that began before it. Where it is
-- interrupted an invalid index stays, and the next try begins by dropping that.
-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS objects_owing;
CREATE INDEX CONCURRENTLY objects_owing ON objects (source, account, object_type, object_id) WHERE look_after <> 0;
