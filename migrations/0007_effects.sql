-- Effects: the ledger of side effects and their steps, baselines of ambiguous objects, and windows
-- of scheduled rules.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE effects (
  effect           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key              text NOT NULL,
  rule_version     int NOT NULL,
  forced           int NOT NULL DEFAULT 0,
  rule             text NOT NULL,
  source           int NOT NULL,
  account          text NOT NULL,
  object_type      text NOT NULL,
  object_id        text NOT NULL,
  event_id         bigint NOT NULL,
  run              bigint NOT NULL,
  template_data    jsonb,
  state            text NOT NULL,
  reason           text NOT NULL DEFAULT '',
  compensating     boolean NOT NULL DEFAULT false,
  destination      text NOT NULL,
  attempts         int NOT NULL DEFAULT 0,
  due              timestamptz,
  lease_owner      text NOT NULL DEFAULT '',
  lease_until      timestamptz,
  planned_at       timestamptz NOT NULL,
  updated_at       timestamptz NOT NULL,
  lease_epoch      bigint NOT NULL DEFAULT 0,
  first_attempt_at timestamptz,
  expires_at       timestamptz,
  in_order         boolean NOT NULL DEFAULT false,
  CHECK ((state IN ('planned', 'failed')) = (due IS NOT NULL)),
  CHECK ((state = 'running') = (lease_until IS NOT NULL)),
  CHECK (state IN ('awaiting_approval', 'planned', 'running',
    'failed', 'needs_review', 'done', 'rejected', 'expired', 'superseded'))
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX effects_due ON effects (destination, due) WHERE state IN ('planned', 'failed');
CREATE INDEX effects_event ON effects (event_id);
CREATE INDEX effects_expiring ON effects (expires_at) WHERE state = 'awaiting_approval' AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX effects_key ON effects (key, rule_version, forced);
CREATE INDEX effects_object ON effects (source, account, object_type, object_id);
CREATE INDEX effects_in_order ON effects (source, account, object_type, object_id, rule, effect)
  WHERE in_order AND state IN ('planned', 'running', 'failed');
CREATE INDEX effects_summaries ON effects USING gin ((template_data -> 'summary') jsonb_path_ops)
  WHERE template_data ? 'summary';
CREATE INDEX effects_leased ON effects (lease_until) WHERE state = 'running';
CREATE INDEX effects_unfinished ON effects (state, effect)
  WHERE state IN ('awaiting_approval', 'failed', 'needs_review');
CREATE INDEX effects_awaiting_approval ON effects (rule, planned_at)
  WHERE state = 'awaiting_approval' AND expires_at IS NULL;
COMMENT ON TABLE effects IS 'Ledger of side effects: one row per key and version of its rule.';
COMMENT ON COLUMN effects.effect IS 'Number of the effect.';
COMMENT ON COLUMN effects.key IS 'Key of the planned effect: the same change gives the same key.';
COMMENT ON COLUMN effects.rule_version IS 'Version of the rule in the configuration.';
COMMENT ON COLUMN effects.forced IS 'Replay run with mode force that repeated the effect. 0 for the first.';
COMMENT ON COLUMN effects.rule IS 'Name of the rule.';
COMMENT ON COLUMN effects.source IS 'Number of the source.';
COMMENT ON COLUMN effects.account IS 'Tenant inside the source.';
COMMENT ON COLUMN effects.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN effects.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN effects.event_id IS 'Event that made the change. 0 for a scheduled rule.';
COMMENT ON COLUMN effects.run IS 'Run that planned the effect. 0 is live.';
COMMENT ON COLUMN effects.template_data IS
  'Data for the templates of the steps: old and new state, object, event, window and summary. Null after redaction or '
  'retention.';
COMMENT ON COLUMN effects.state IS
  'awaiting_approval, planned, running, failed (retried), needs_review, done, rejected, expired or superseded.';
COMMENT ON COLUMN effects.reason IS 'Reason of the state in words.';
COMMENT ON COLUMN effects.compensating IS 'Completed steps are being compensated, the last first.';
COMMENT ON COLUMN effects.destination IS 'Destination of the next step.';
COMMENT ON COLUMN effects.attempts IS 'Number of attempts of the next step.';
COMMENT ON COLUMN effects.due IS 'Time of the next attempt. Null where none is planned.';
COMMENT ON COLUMN effects.lease_owner IS 'Process that executes the effect now.';
COMMENT ON COLUMN effects.lease_until IS 'End of that process''s lease.';
COMMENT ON COLUMN effects.planned_at IS 'Time at which the effect was planned.';
COMMENT ON COLUMN effects.updated_at IS 'Time of the last change of this row.';
COMMENT ON COLUMN effects.lease_epoch IS
  'Number of leases so far. A result is recorded only by the owner of the latest lease.';
COMMENT ON COLUMN effects.first_attempt_at IS
  'First attempt of the next step since the previous step was done or an operator resumed the effect. The age of '
  'retries counts from here.';
COMMENT ON COLUMN effects.expires_at IS 'End of the time for approval. Null where the rule sets none.';
COMMENT ON COLUMN effects.in_order IS
  'The effect waits until earlier effects of its rule and object are done or need review.';

CREATE TABLE effect_steps (
  effect           bigint REFERENCES effects (effect) ON DELETE CASCADE NOT NULL,
  step             text NOT NULL,
  undo             boolean NOT NULL DEFAULT false,
  position         int NOT NULL,
  state            text NOT NULL,
  destination      text NOT NULL,
  request          jsonb,
  fingerprint      bytea NOT NULL,
  attempts         int NOT NULL,
  reserved_at      timestamptz NOT NULL,
  ended_at         timestamptz,
  status           int,
  captured         jsonb NOT NULL DEFAULT '{}',
  error            text NOT NULL DEFAULT '',
  resolved_by      text NOT NULL DEFAULT 'key',
  undoable         boolean NOT NULL DEFAULT false,
  captures         text[] NOT NULL DEFAULT '{}',
  first_attempt_at timestamptz,
  at_most_once     boolean NOT NULL DEFAULT false,
  reason           text NOT NULL DEFAULT '',
  PRIMARY KEY (effect, step, undo),
  CHECK (resolved_by IN ('key', 'check', 'operator')),
  CHECK (state IN ('checking', 'reserved', 'done', 'failed', 'unknown', 'skipped'))
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX effect_steps_unknown ON effect_steps (effect)
  WHERE state = 'unknown' OR (state = 'reserved' AND first_attempt_at < reserved_at);
COMMENT ON TABLE effect_steps IS
  'Steps of effects that were started or skipped. A row is committed before its request is sent.';
COMMENT ON COLUMN effect_steps.effect IS 'The effect.';
COMMENT ON COLUMN effect_steps.step IS 'Name of the step in the rule.';
COMMENT ON COLUMN effect_steps.undo IS 'The row is the compensation of the step.';
COMMENT ON COLUMN effect_steps.position IS 'Position of the step in the rule.';
COMMENT ON COLUMN effect_steps.state IS
  'checking (the destination is asked before the first attempt), reserved (the request may be in progress), done, '
  'failed, unknown (the request may have been executed) or skipped (the condition of the step was false).';
COMMENT ON COLUMN effect_steps.destination IS 'Destination of the request.';
COMMENT ON COLUMN effect_steps.request IS
  'Request as sent at each attempt: method, path, headers and body, without the destination''s own headers. Null '
  'after redaction or retention.';
COMMENT ON COLUMN effect_steps.fingerprint IS 'SHA-256 of the request. Empty where none was sent.';
COMMENT ON COLUMN effect_steps.attempts IS 'Number of attempts. 0 where the request was never sent.';
COMMENT ON COLUMN effect_steps.reserved_at IS 'Time at which the last attempt was reserved.';
COMMENT ON COLUMN effect_steps.ended_at IS 'Time at which the step ended. Null before.';
COMMENT ON COLUMN effect_steps.status IS 'HTTP status of the last response.';
COMMENT ON COLUMN effect_steps.captured IS 'Values of the response that later steps and operators need, by name.';
COMMENT ON COLUMN effect_steps.error IS 'Error of the last attempt.';
COMMENT ON COLUMN effect_steps.resolved_by IS
  'How an unknown outcome is resolved: key (send again under the same key), check (ask the destination) or operator.';
COMMENT ON COLUMN effect_steps.undoable IS 'The rule had a compensation for the step when it was sent.';
COMMENT ON COLUMN effect_steps.captures IS 'Names that the rule captured from the response when the step was sent.';
COMMENT ON COLUMN effect_steps.first_attempt_at IS
  'Time at which the first attempt that may have been executed was reserved. Null where it is planned_at of the '
  'effect, or reserved_at with one attempt.';
COMMENT ON COLUMN effect_steps.at_most_once IS
  'The step is not sent again automatically where the destination does not know it.';
COMMENT ON COLUMN effect_steps.reason IS
  'Why the step was skipped, or is done although its request was never sent. Empty otherwise.';

CREATE TABLE effect_baselines (
  source      int NOT NULL,
  account     text NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  state       jsonb,
  deleted     boolean NOT NULL,
  existed     boolean NOT NULL,
  exact_hash  bytea NOT NULL,
  recorded_at timestamptz NOT NULL,
  PRIMARY KEY (source, account, object_type, object_id)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_baselines IS
  'Last certain state of objects that became ambiguous. Rules compare it with the next certain state.';
COMMENT ON COLUMN effect_baselines.source IS 'Number of the source.';
COMMENT ON COLUMN effect_baselines.account IS 'Tenant inside the source.';
COMMENT ON COLUMN effect_baselines.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN effect_baselines.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN effect_baselines.state IS 'The last certain state.';
COMMENT ON COLUMN effect_baselines.deleted IS 'The object was deleted in that state.';
COMMENT ON COLUMN effect_baselines.existed IS 'The mirror had the object at that time.';
COMMENT ON COLUMN effect_baselines.exact_hash IS 'Hash of the state.';
COMMENT ON COLUMN effect_baselines.recorded_at IS 'Time at which the row was inserted.';

CREATE TABLE effect_windows (
  rule          text NOT NULL,
  source        int NOT NULL,
  object_type   text NOT NULL,
  cron          text NOT NULL,
  time_zone     text NOT NULL,
  decided_at    timestamptz NOT NULL,
  window_start  timestamptz,
  window_end    timestamptz,
  account       text NOT NULL DEFAULT '',
  object_id     text NOT NULL DEFAULT '',
  collected_until bigint,
  changes_until bigint,
  summary       text NOT NULL DEFAULT '',
  clock_seconds bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (rule, source, object_type, cron, time_zone),
  CHECK (collected_until <= changes_until),
  CHECK ((window_start IS NULL) = (window_end IS NULL)),
  CHECK (window_start < window_end)
)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_windows IS
  'Progress of scheduled rules. A process locks the row of a window and moves it in the transaction that plans '
  'effects.';
COMMENT ON COLUMN effect_windows.rule IS 'Name of the rule.';
COMMENT ON COLUMN effect_windows.source IS 'Number of the source.';
COMMENT ON COLUMN effect_windows.object_type IS 'The object type of the rule.';
COMMENT ON COLUMN effect_windows.cron IS 'Cron expression of the rule.';
COMMENT ON COLUMN effect_windows.time_zone IS 'Time zone of the expression.';
COMMENT ON COLUMN effect_windows.decided_at IS 'Every window that ends up to this time was handled or skipped.';
COMMENT ON COLUMN effect_windows.window_start IS 'Start of the window in progress. Null where none is.';
COMMENT ON COLUMN effect_windows.window_end IS 'End of the window in progress. Null where none is.';
COMMENT ON COLUMN effect_windows.account IS 'With object_id: objects up to this one were handled.';
COMMENT ON COLUMN effect_windows.object_id IS 'With account: objects up to this one were handled.';
COMMENT ON COLUMN effect_windows.collected_until IS
  'Number of a change: the changes of the window were collected up to it. Null where the rule has no summary.';
COMMENT ON COLUMN effect_windows.changes_until IS
  'Number of the last change of the window; without a window in progress, of the previous one.';
COMMENT ON COLUMN effect_windows.summary IS
  'Type and path of the rule''s summary, to which the two numbers belong. Empty where the rule has none.';
COMMENT ON COLUMN effect_windows.clock_seconds IS
  'Value of effect_schedule_clock.seconds when a processor last had the rule.';

CREATE TABLE effect_window_waits (
  rule         text NOT NULL,
  source       int NOT NULL,
  account      text NOT NULL,
  object_type  text NOT NULL,
  object_id    text NOT NULL,
  window_start timestamptz NOT NULL,
  window_end   timestamptz NOT NULL,
  PRIMARY KEY (rule, source, object_type, account, object_id, window_end, window_start)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_window_waits IS
  'Objects that were ambiguous when a window reached them. The rule is evaluated for them when their state is '
  'certain.';
COMMENT ON COLUMN effect_window_waits.rule IS 'Name of the rule.';
COMMENT ON COLUMN effect_window_waits.source IS 'Number of the source.';
COMMENT ON COLUMN effect_window_waits.account IS 'Tenant inside the source.';
COMMENT ON COLUMN effect_window_waits.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN effect_window_waits.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN effect_window_waits.window_start IS 'Start of the window.';
COMMENT ON COLUMN effect_window_waits.window_end IS 'End of the window.';

CREATE TABLE effect_window_changes (
  rule         text NOT NULL,
  source       int NOT NULL,
  object_type  text NOT NULL,
  account      text NOT NULL,
  object_id    text NOT NULL,
  window_end   timestamptz NOT NULL,
  window_start timestamptz NOT NULL,
  number       bigint NOT NULL,
  changed_id   text NOT NULL,
  summary      text NOT NULL,
  PRIMARY KEY (rule, source, object_type, account, object_id, window_end, window_start, summary, number)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_window_changes IS
  'Objects that changed in a window in progress, for a rule with a summary, by the object that they belong to. They '
  'are deleted when the rule is evaluated.';
COMMENT ON COLUMN effect_window_changes.rule IS 'Name of the rule.';
COMMENT ON COLUMN effect_window_changes.source IS 'Number of the source.';
COMMENT ON COLUMN effect_window_changes.object_type IS 'The object type of the rule.';
COMMENT ON COLUMN effect_window_changes.account IS 'Tenant inside the source.';
COMMENT ON COLUMN effect_window_changes.object_id IS 'Id of the object of the rule.';
COMMENT ON COLUMN effect_window_changes.window_end IS 'End of the window.';
COMMENT ON COLUMN effect_window_changes.window_start IS 'Start of the window.';
COMMENT ON COLUMN effect_window_changes.number IS 'Number of the change.';
COMMENT ON COLUMN effect_window_changes.changed_id IS
  'Id of the object that changed. Its type is that of the summary.';
COMMENT ON COLUMN effect_window_changes.summary IS 'Type and path of the summary for which the change was collected.';

CREATE TABLE effect_schedule_clock (
  singleton  boolean PRIMARY KEY DEFAULT true,
  counted_at timestamptz NOT NULL,
  seconds    bigint NOT NULL DEFAULT 0,
  CHECK (singleton)
)
WITH (fillfactor = 50);
COMMENT ON TABLE effect_schedule_clock IS
  'One row: for how many seconds processors have evaluated scheduled rules. It stands still while no processor runs.';
COMMENT ON COLUMN effect_schedule_clock.singleton IS 'Always true, so that the table has one row.';
COMMENT ON COLUMN effect_schedule_clock.counted_at IS 'Time at which seconds was last advanced.';
COMMENT ON COLUMN effect_schedule_clock.seconds IS 'Seconds so far.';
INSERT INTO effect_schedule_clock (counted_at) VALUES (clock_now());
