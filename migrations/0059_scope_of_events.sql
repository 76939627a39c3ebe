-- Says that what is proven of events is of the lists that were read, as what is proven of objects is.
-- Locks: none that reads or writes wait for.
-- +goose Up
COMMENT ON COLUMN watermarks.scope IS 'digest of the list that the type was proven by, or of the lists of events or deliveries; empty where it was proven before there was one';
