-- Keeps a body in its event's row, compressed where that helps, as long as the row fits a page: an append then writes no chunks
-- beside the log and no index of them. The other columns follow, or they would be moved out of the row to make room for the body.
-- Few rows tell no plan by what to look up a key in a table that grows by thousands a second: its first analysis comes late.
-- Locks: ACCESS EXCLUSIVE on events and its partitions, briefly (nothing is rewritten); SHARE UPDATE EXCLUSIVE on event_keys. Appends wait
-- behind it, so it does not wait long itself: where a dump or an export reads the log just then, it fails after 5 s and can be run again.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE events
  ALTER event_id SET STORAGE main, ALTER event_type SET STORAGE main, ALTER account SET STORAGE main,
  ALTER object_type SET STORAGE main, ALTER object_id SET STORAGE main, ALTER api_version SET STORAGE main,
  ALTER headers SET STORAGE main, ALTER verification SET STORAGE main, ALTER body SET STORAGE main,
  ALTER origin SET STORAGE plain, ALTER fingerprint SET STORAGE plain;
ALTER TABLE event_keys SET (autovacuum_analyze_threshold = 20000);
