-- Keeps the ledger of effects: what must follow from changes of objects, once, and which steps of it were taken.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE effects (
  effect       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key          text NOT NULL,
  rule_version int NOT NULL,
  forced       int NOT NULL DEFAULT 0,
  rule         text NOT NULL,
  source       int NOT NULL,
  account      text NOT NULL,
  object_type  text NOT NULL,
  object_id    text NOT NULL,
  event_id     bigint NOT NULL,
  run          bigint NOT NULL,
  facts        jsonb,
  state        text NOT NULL CHECK (state IN ('waiting', 'planned', 'running', 'failed', 'review', 'done', 'rejected', 'expired', 'superseded')),
  reason       text NOT NULL DEFAULT '',
  undoing      boolean NOT NULL DEFAULT false,
  destination  text NOT NULL,
  attempts     int NOT NULL DEFAULT 0,
  due          timestamptz,
  taken_by     text NOT NULL DEFAULT '',
  taken_until  timestamptz,
  planned_at   timestamptz NOT NULL,
  updated_at   timestamptz NOT NULL,
  CHECK ((state IN ('planned', 'failed')) = (due IS NOT NULL)),
  CHECK ((state = 'running') = (taken_until IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effects IS 'ledger of side effects: one for each key and version of its rule';
COMMENT ON COLUMN effects.forced IS 'counts how often a person had it happen again on purpose; 0 for the first';
COMMENT ON COLUMN effects.event_id IS 'the event that made the change; 0 for a schedule';
COMMENT ON COLUMN effects.run IS 'the run that planned it; 0: as the event arrived';
COMMENT ON COLUMN effects.facts IS 'what the templates of its steps see: old and new state, object and event; null once redacted';
COMMENT ON COLUMN effects.undoing IS 'steps that were done are undone, the last first';
COMMENT ON COLUMN effects.destination IS 'where its next step goes';
COMMENT ON COLUMN effects.attempts IS 'of its next step';
CREATE UNIQUE INDEX effects_key ON effects (key, rule_version, forced);
CREATE INDEX effects_due ON effects (destination, due) WHERE state IN ('planned', 'failed');
CREATE INDEX effects_taken ON effects (taken_until) WHERE state = 'running';
CREATE INDEX effects_object ON effects (source, account, object_type, object_id);
CREATE INDEX effects_event ON effects (event_id);
CREATE INDEX effects_unsettled ON effects (state, effect) WHERE state IN ('waiting', 'failed', 'review');

CREATE TABLE effect_steps (
  effect      bigint NOT NULL REFERENCES effects ON DELETE CASCADE,
  step        text NOT NULL,
  undo        boolean NOT NULL DEFAULT false,
  place       int NOT NULL,
  state       text NOT NULL CHECK (state IN ('reserved', 'done', 'failed', 'unknown')),
  destination text NOT NULL,
  request     jsonb,
  fingerprint bytea NOT NULL,
  attempts    int NOT NULL,
  reserved_at timestamptz NOT NULL,
  ended_at    timestamptz,
  status      int,
  captured    jsonb NOT NULL DEFAULT '{}',
  error       text NOT NULL DEFAULT '',
  PRIMARY KEY (effect, step, undo)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_steps IS 'steps of effects that were begun; a row is committed before its call is made';
COMMENT ON COLUMN effect_steps.state IS 'reserved: the call may be under way; unknown: nobody knows whether it did what it was to do';
COMMENT ON COLUMN effect_steps.request IS 'what is sent, the same at each attempt: method, path, headers and body, without the destination''s own headers; null once redacted';
COMMENT ON COLUMN effect_steps.fingerprint IS 'SHA-256 of the request';
COMMENT ON COLUMN effect_steps.captured IS 'what the answer said that later steps and people need, by name';

CREATE TABLE effect_holds (
  source      int NOT NULL,
  account     text NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  state       jsonb,
  deleted     boolean NOT NULL,
  there       boolean NOT NULL,
  exact_hash  bytea NOT NULL,
  held_at     timestamptz NOT NULL,
  PRIMARY KEY (source, account, object_type, object_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_holds IS 'what was certain of objects before they became ambiguous: rules see the change from here to what is certain next';
COMMENT ON COLUMN effect_holds.there IS 'there was such an object';

ALTER TABLE effects OWNER TO postern_maintenance;
ALTER TABLE effect_steps OWNER TO postern_maintenance;
ALTER TABLE effect_holds OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON effects, effect_steps, effect_holds TO postern_processor;
GRANT SELECT, INSERT, UPDATE ON effects, effect_steps TO postern_operator;
GRANT SELECT ON effect_holds TO postern_operator;
