-- Keeps an object's state in its row, compressed where that helps, as long as the row fits a page: an update of a row of up to half a page
-- then stays on its page and the next one uses the room again, where it left dead chunks and index entries behind, faster than a vacuum could
-- take them away.
-- The other columns follow, or they would be moved out of the row to make room for the state.
-- Locks: ACCESS EXCLUSIVE on objects, briefly (nothing is rewritten; a state moves when it next changes). Applying waits behind it, so it
-- does not wait long itself: where a dump or a long query reads the mirror just then, it fails after 5 s and can be run again.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE objects
  ALTER account SET STORAGE main, ALTER object_type SET STORAGE main, ALTER object_id SET STORAGE main, ALTER tie_set SET STORAGE main, ALTER tie_set SET COMPRESSION lz4,
  ALTER state SET STORAGE main, ALTER state_hash SET STORAGE plain, ALTER exact_hash SET STORAGE plain;
