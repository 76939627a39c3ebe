-- An operator who exports the log freezes a bound first, for which the floor that ids are made above is raised.
-- Locks: rows of PostgreSQL's catalog alone; nothing that appends or reads waits.
-- +goose Up
GRANT UPDATE (ms) ON log_floor TO postern_operator;
