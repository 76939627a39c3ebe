-- The mirror: objects, their copies for retention and rebuild, outcomes, and the outbox of changes.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE objects (
  source         int NOT NULL,
  account        text NOT NULL,
  object_type    text NOT NULL,
  object_id      text NOT NULL,
  version_final  boolean NOT NULL,
  version_at     bigint NOT NULL,
  version_seen   bigint NOT NULL,
  version_rank   smallint NOT NULL,
  tied_states    jsonb COMPRESSION lz4 NOT NULL,
  overflow       boolean NOT NULL,
  time_from      bigint NOT NULL,
  time_to        bigint NOT NULL,
  refetch_after  bigint NOT NULL,
  ambiguous      boolean NOT NULL,
  deleted        boolean NOT NULL,
  state_hash     bytea NOT NULL,
  exact_hash     bytea NOT NULL,
  state          jsonb COMPRESSION lz4,
  sanitized      boolean NOT NULL,
  last_event_id  bigint NOT NULL,
  revision       bigint NOT NULL,
  rule_version   int NOT NULL,
  created_at     timestamptz NOT NULL,
  updated_at     timestamptz NOT NULL,
  overwritten_at bigint NOT NULL DEFAULT 0,
  overwrite_seen bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (source, account, object_type, object_id)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE objects
  ALTER account SET STORAGE MAIN,
  ALTER object_type SET STORAGE MAIN,
  ALTER object_id SET STORAGE MAIN,
  ALTER tied_states SET STORAGE MAIN,
  ALTER state_hash SET STORAGE PLAIN,
  ALTER exact_hash SET STORAGE PLAIN,
  ALTER state SET STORAGE MAIN;
COMMENT ON TABLE objects IS
  'The mirror: one row per object of a provider. Columns version_*, time_* and refetch_after are microseconds on '
  'the provider''s clock.';
COMMENT ON COLUMN objects.source IS 'Number of the source.';
COMMENT ON COLUMN objects.account IS 'Tenant inside the source. Empty where there is none.';
COMMENT ON COLUMN objects.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN objects.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN objects.version_final IS 'True after a permanent delete. No later version can replace it.';
COMMENT ON COLUMN objects.version_at IS 'Event time of the version. -2^63 means that there is no version yet.';
COMMENT ON COLUMN objects.version_seen IS
  'Start of the refetch that read the version. 0 for a version from an event.';
COMMENT ON COLUMN objects.version_rank IS 'Order of versions that have the same time.';
COMMENT ON COLUMN objects.tied_states IS 'All different contents of exactly this version.';
COMMENT ON COLUMN objects.overflow IS 'There were more tied states than the set may hold.';
COMMENT ON COLUMN objects.time_from IS 'Start of the interval in which the state was observed.';
COMMENT ON COLUMN objects.time_to IS 'End of the interval in which the state was observed.';
COMMENT ON COLUMN objects.refetch_after IS 'A refetch that starts after this time is pending. 0 where none is.';
COMMENT ON COLUMN objects.ambiguous IS 'The tied states do not tell which of them is current.';
COMMENT ON COLUMN objects.deleted IS 'The object does not exist any more; the row is its tombstone.';
COMMENT ON COLUMN objects.state_hash IS
  'Hash of the state without ignored paths. Equal hashes mean an unchanged object.';
COMMENT ON COLUMN objects.exact_hash IS 'Hash of the whole state.';
COMMENT ON COLUMN objects.state IS 'The object''s state. Null after redaction, or where the provider sent none.';
COMMENT ON COLUMN objects.sanitized IS
  'The state contained text or numbers that jsonb refuses. They were replaced; the event''s body keeps the original.';
COMMENT ON COLUMN objects.last_event_id IS 'Event that made the current version.';
COMMENT ON COLUMN objects.revision IS 'Grows with each change of state, deleted or ambiguous.';
COMMENT ON COLUMN objects.rule_version IS 'Version of the version rule that decided the row.';
COMMENT ON COLUMN objects.created_at IS 'Time at which the row was inserted.';
COMMENT ON COLUMN objects.updated_at IS 'Time of the last change of this row.';
COMMENT ON COLUMN objects.overwritten_at IS
  'Time at which an operator overwrote the object from the provider, in microseconds of the database clock. Events '
  'received before do not count. 0 where no operator did.';
COMMENT ON COLUMN objects.overwrite_seen IS
  'Start of the refetch that an operator overwrote the object with, in microseconds on the provider''s clock. 0 '
  'where no operator did.';

CREATE TABLE retained_objects (LIKE objects INCLUDING ALL)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE retained_objects IS
  'Each object as the events of dropped partitions, and only they, make it. Rebuild and verify start from these rows.';

CREATE TABLE staged_objects (LIKE objects INCLUDING ALL)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE staged_objects IS 'Objects that an open rebuild made from the log. A swap makes them live.';

-- Only the live objects need it, so it is created after the copies of their definition.
CREATE INDEX objects_refetch_pending ON objects (source, account, object_type, object_id) WHERE refetch_after <> 0;

CREATE TABLE outcomes (
  event_id     bigint NOT NULL,
  run          bigint NOT NULL,
  source       int NOT NULL,
  object       bigint NOT NULL,
  account      text NOT NULL,
  object_type  text NOT NULL,
  object_id    text NOT NULL,
  status       text NOT NULL,
  reason       text NOT NULL,
  version      jsonb,
  decided_by   jsonb,
  attempts     int NOT NULL,
  due          timestamptz,
  at           timestamptz NOT NULL,
  rule_version int NOT NULL,
  PRIMARY KEY (event_id, run),
  CHECK ((status = 'failed') = (due IS NOT NULL)),
  CHECK (status IN ('applied', 'unchanged', 'stale', 'ambiguous', 'ignored', 'failed', 'dead'))
)
WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX outcomes_by_object ON outcomes (object, event_id) WHERE object <> 0;
CREATE INDEX outcomes_dead ON outcomes (event_id) WHERE status = 'dead';
CREATE INDEX outcomes_due ON outcomes (due) WHERE status = 'failed' AND run = 0;
CREATE INDEX outcomes_of_runs ON outcomes (run) WHERE run > 0;
CREATE INDEX outcomes_unfinished ON outcomes (run, event_id) WHERE status IN ('failed', 'dead');
COMMENT ON TABLE outcomes IS 'Ledger of applying: one outcome per event and run. Run 0 is live.';
COMMENT ON COLUMN outcomes.event_id IS 'Postern''s number of the event: events.id, not events.event_id.';
COMMENT ON COLUMN outcomes.run IS 'Run that the outcome belongs to. 0 is live.';
COMMENT ON COLUMN outcomes.source IS 'Number of the source.';
COMMENT ON COLUMN outcomes.object IS
  'Hash of source, account, object_type and object_id. 0 where the event is about no object.';
COMMENT ON COLUMN outcomes.account IS 'Tenant inside the source.';
COMMENT ON COLUMN outcomes.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN outcomes.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN outcomes.status IS
  'applied, unchanged, stale, ambiguous, ignored, failed (retried at due) or dead (needs an operator).';
COMMENT ON COLUMN outcomes.reason IS 'Reason of the status in words.';
COMMENT ON COLUMN outcomes.version IS 'Version that the event carried.';
COMMENT ON COLUMN outcomes.decided_by IS 'Version of the stored row that decided a stale or unchanged outcome.';
COMMENT ON COLUMN outcomes.attempts IS 'Number of attempts so far.';
COMMENT ON COLUMN outcomes.due IS 'Time of the next attempt of a failed outcome. Null for every other status.';
COMMENT ON COLUMN outcomes.at IS 'Time of the last attempt.';
COMMENT ON COLUMN outcomes.rule_version IS 'Version of the version rule that decided.';

CREATE TABLE outbox (
  batch      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  sources    integer[] NOT NULL,
  accounts   text[] NOT NULL,
  types      text[] NOT NULL,
  ids        text[] NOT NULL,
  created_at timestamptz NOT NULL,
  sent_at    timestamptz,
  sequence   bigint,
  numbered   boolean NOT NULL DEFAULT false,
  forward_pending boolean NOT NULL DEFAULT false,
  CHECK ((sent_at IS NULL) = (sequence IS NULL))
)
WITH (fillfactor = 70);
CREATE INDEX outbox_unsent ON outbox (created_at) WHERE sent_at IS NULL;
CREATE INDEX outbox_unnumbered ON outbox (batch) WHERE NOT numbered;
CREATE INDEX outbox_forward_pending ON outbox (batch) WHERE forward_pending;
COMMENT ON TABLE outbox IS
  'Changes to publish: one row per apply transaction. The maintenance loop vacuums it, because autovacuum comes too '
  'late.';
COMMENT ON COLUMN outbox.batch IS 'Number of the row.';
COMMENT ON COLUMN outbox.sources IS 'Sources of the changed objects. The four arrays are parallel.';
COMMENT ON COLUMN outbox.accounts IS 'Accounts of the changed objects.';
COMMENT ON COLUMN outbox.types IS 'Types of the changed objects.';
COMMENT ON COLUMN outbox.ids IS 'Ids of the changed objects.';
COMMENT ON COLUMN outbox.created_at IS 'Time of the transaction.';
COMMENT ON COLUMN outbox.sent_at IS 'Time at which the stream acknowledged the changes. Null before.';
COMMENT ON COLUMN outbox.sequence IS 'Sequence number of the last message in the stream. Null before it was sent.';
COMMENT ON COLUMN outbox.forward_pending IS
  'A processor with forwards has not planned the effects of these changes yet.';
COMMENT ON COLUMN outbox.numbered IS 'The changes have their numbers in table changes.';

CREATE TABLE changes (
  source      int NOT NULL,
  account     text NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  number      bigint NOT NULL,
  changed_at  timestamptz NOT NULL,
  -- The id comes first: it differs most, so one comparison is usually enough.
  PRIMARY KEY (object_id, object_type, account, source)
)
WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX changes_by_number ON changes (number);
COMMENT ON TABLE changes IS
  'The last change of each object, by its number. Numbers are assigned after the commit of the change, in one order, '
  'so that a reader who continues after a number skips no object.';
COMMENT ON COLUMN changes.source IS 'Number of the source.';
COMMENT ON COLUMN changes.account IS 'Tenant inside the source.';
COMMENT ON COLUMN changes.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN changes.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN changes.number IS 'Number of the change. An object that changes again gets a greater number.';
COMMENT ON COLUMN changes.changed_at IS
  'Time of the change, or of the change with the previous number if that is later.';

CREATE TABLE change_feed (
  only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  newest       bigint NOT NULL,
  server       text NOT NULL,
  epochs       text[] NOT NULL,
  epoch_starts bigint[] NOT NULL
);
COMMENT ON TABLE change_feed IS
  'One row: the newest number of table changes, and the epochs of the numbers. A database that was restored from a '
  'backup begins a new epoch, because it may assign numbers again that readers have seen.';
COMMENT ON COLUMN change_feed.only_row IS 'True.';
COMMENT ON COLUMN change_feed.newest IS 'The newest number.';
COMMENT ON COLUMN change_feed.server IS
  'The server, the database and the timeline when numbers were last assigned.';
COMMENT ON COLUMN change_feed.epochs IS 'Names of the epochs, the current one last.';
COMMENT ON COLUMN change_feed.epoch_starts IS
  'The newest number when each epoch began. Parallel to epochs.';

-- +goose StatementBegin
-- The server, the database, and the timeline of the server's log. A failover changes it, and so
-- does a restore to another server, to another database, or to a point in time. Empty if the server
-- does not report it.
CREATE FUNCTION server_identity() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT system_identifier FROM pg_control_system())
    || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
    || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN OTHERS THEN
  RETURN '';
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION new_epoch() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT left(replace(gen_random_uuid()::text, '-', ''), 8)
$$;
-- +goose StatementEnd

INSERT INTO change_feed (newest, server, epochs, epoch_starts)
VALUES (0, server_identity(), ARRAY[new_epoch()], ARRAY[0]);

-- +goose StatementBegin
-- The hash of an object without state.
CREATE FUNCTION null_hash(deleted boolean) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT sha256(convert_to(CASE WHEN deleted THEN '-null' ELSE '+null' END, 'UTF8'))
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION version_json(final boolean, at bigint, seen bigint, rank smallint) RETURNS jsonb
  LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN at > -9223372036854775808
    THEN jsonb_build_object('final', final, 'at', at, 'seen', seen, 'rank', rank) END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION provider_time(us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  -- Up to the year 9999: a later time in a hostile body must not make the view unreadable.
  SELECT CASE WHEN us BETWEEN 1 AND 253402300799999999 THEN timestamptz 'epoch' + us * interval '1 microsecond' END
$$;
-- +goose StatementEnd
