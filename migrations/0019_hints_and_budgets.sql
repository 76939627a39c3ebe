-- Keeps what reconciliation owes and what it may spend: hints are objects that owe a look at the provider's API, each once; a budget is the one bucket from
-- which all processes take their calls for an account.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE hints (
  source      int NOT NULL,
  account     text NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  reason      text NOT NULL,
  wanted_by   text NOT NULL DEFAULT '',
  made_at     timestamptz NOT NULL,
  due         timestamptz NOT NULL,
  after       bigint NOT NULL,
  attempts    int NOT NULL DEFAULT 0,
  error       text NOT NULL DEFAULT '',
  taken_by    text NOT NULL DEFAULT '',
  taken_until timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (source, account, object_type, object_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE hints IS 'objects that owe a look, each once; a hint goes when its object owes nothing any more';
COMMENT ON COLUMN hints.wanted_by IS 'who asked for the look; empty where the mirror did';
COMMENT ON COLUMN hints.after IS 'the look must begin after this point of the provider''s time, in microseconds';
COMMENT ON COLUMN hints.error IS 'why the last attempt came to nothing';
COMMENT ON COLUMN hints.taken_until IS 'until then the look is taken_by''s to make';
CREATE INDEX hints_due ON hints (due);

-- A row is written twice for each call, so that its page keeps room for the versions that follow.
CREATE TABLE budgets (
  source        int NOT NULL,
  account       text NOT NULL,
  tokens        double precision NOT NULL,
  refilled_at   timestamptz NOT NULL,
  blocked_until timestamptz NOT NULL,
  throttles     int NOT NULL,
  in_flight     jsonb NOT NULL,
  PRIMARY KEY (source, account)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_analyze_threshold = 1000000);
COMMENT ON TABLE budgets IS 'calls that may be made to a provider for an account: one bucket for all processes';
COMMENT ON COLUMN budgets.tokens IS 'calls that could begin at refilled_at';
COMMENT ON COLUMN budgets.blocked_until IS 'nobody calls before: the provider asked for it';
COMMENT ON COLUMN budgets.throttles IS 'how often in a row it did';
COMMENT ON COLUMN budgets.in_flight IS 'calls under way, each with the time at which it counts as dead, in Unix seconds';

ALTER TABLE hints OWNER TO postern_maintenance;
ALTER TABLE budgets OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON hints TO postern_processor;
GRANT SELECT, INSERT, UPDATE ON budgets TO postern_processor;
GRANT SELECT, INSERT, UPDATE ON hints TO postern_operator;
GRANT SELECT ON budgets TO postern_operator;
