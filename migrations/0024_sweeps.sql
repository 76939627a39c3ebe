-- Keeps how far the sweeps of reconciliation are, what they have met, and at which objects and fields the mirror differed from the provider.
-- Locks: SHARE ROW EXCLUSIVE on runs while tables get their references to it, briefly.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE TABLE sweeps (
  run         bigint      NOT NULL REFERENCES runs ON DELETE CASCADE,
  source      int         NOT NULL,
  account     text        NOT NULL,
  object_type text        NOT NULL,
  phase       text        NOT NULL DEFAULT 'list' CHECK (phase IN ('list', 'ghosts', 'graves', 'done')),
  cursor      text        NOT NULL DEFAULT '',
  hand        jsonb       NOT NULL DEFAULT '[]',
  since       timestamptz,
  until       timestamptz,
  began       timestamptz NOT NULL,
  updated_at  timestamptz NOT NULL,
  restarts    int         NOT NULL DEFAULT 0,
  asked       bigint      NOT NULL DEFAULT 0,
  checked     bigint      NOT NULL DEFAULT 0,
  missing     bigint      NOT NULL DEFAULT 0,
  behind      bigint      NOT NULL DEFAULT 0,
  ahead       bigint      NOT NULL DEFAULT 0,
  different   bigint      NOT NULL DEFAULT 0,
  ghosts      bigint      NOT NULL DEFAULT 0,
  mended      bigint      NOT NULL DEFAULT 0,
  remaining   bigint      NOT NULL DEFAULT 0,
  PRIMARY KEY (run, object_type)
) WITH (fillfactor = 50);
COMMENT ON TABLE sweeps IS 'how far a run that goes through all objects of a type is, and what it has met';
COMMENT ON COLUMN sweeps.cursor IS 'where the list, or the walk through the mirror, goes on';
COMMENT ON COLUMN sweeps.hand IS 'objects before the cursor that are not mended yet: id, kind, and whether it was counted';
COMMENT ON COLUMN sweeps.since IS 'what changed from then until until was asked for, on the provider''s clock; null: everything';
COMMENT ON COLUMN sweeps.began IS 'the list tells at least of what happened before, on the provider''s clock';
COMMENT ON COLUMN sweeps.asked IS 'as many tombstones as had to be approved before the first was made; 0: none had to be';

CREATE TABLE listed (
  run         bigint NOT NULL,
  object_type text   NOT NULL,
  object      bigint NOT NULL,
  PRIMARY KEY (run, object_type, object)
);
COMMENT ON TABLE listed IS 'digests of the objects that a run has been told of; they go when the type is done, or after the run';

CREATE TABLE ghosts (
  run         bigint      NOT NULL REFERENCES runs ON DELETE CASCADE,
  object_type text        NOT NULL,
  object_id   text        NOT NULL,
  date        timestamptz NOT NULL,
  elapsed_us  bigint      NOT NULL,
  body        bytea,
  PRIMARY KEY (run, object_type, object_id)
);
COMMENT ON TABLE ghosts IS 'objects that the provider has said to be missing, and when; they go when their tombstones are in the log, or after the run';
COMMENT ON COLUMN ghosts.body IS 'what it has answered in their place; null where nothing';

CREATE TABLE drifts (
  run         bigint NOT NULL REFERENCES runs ON DELETE CASCADE,
  source      int    NOT NULL,
  account     text   NOT NULL,
  object_type text   NOT NULL,
  object_id   text   NOT NULL,
  kind        text   NOT NULL CHECK (kind IN ('missing', 'behind', 'different', 'ghost')),
  fields      jsonb  NOT NULL DEFAULT '[]',
  more        int    NOT NULL DEFAULT 0,
  event_id    bigint,
  result      text   NOT NULL DEFAULT '' CHECK (result IN ('', 'mended', 'left')),
  reason      text   NOT NULL DEFAULT '',
  PRIMARY KEY (run, object_type, object_id)
);
CREATE INDEX drifts_object ON drifts (source, account, object_type, object_id);
COMMENT ON TABLE drifts IS 'objects at which the mirror differed from the provider, the first of each run, field by field';
COMMENT ON COLUMN drifts.more IS 'how many fields differ besides';
COMMENT ON COLUMN drifts.event_id IS 'the look that was to mend it';

ALTER TABLE sweeps OWNER TO postern_maintenance;
ALTER TABLE listed OWNER TO postern_maintenance;
ALTER TABLE ghosts OWNER TO postern_maintenance;
ALTER TABLE drifts OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE ON sweeps TO postern_processor;
GRANT SELECT, INSERT, DELETE ON listed TO postern_processor;
GRANT SELECT, INSERT, DELETE ON ghosts TO postern_processor;
GRANT SELECT, INSERT, UPDATE, DELETE ON drifts TO postern_processor;
GRANT SELECT ON sweeps, drifts TO postern_operator;
