-- Lets operators take hints back: wishes of theirs, and hints that nothing can be made of. The mirror makes them again where an object still owes a look.
-- Locks: none on what is there.
-- +goose Up
GRANT DELETE ON hints TO postern_operator;
