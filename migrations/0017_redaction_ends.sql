-- Leaves nothing of what a redaction looked for, however it ended: the digests go with the run also where it failed or was cancelled, and so do the details of
-- runs that quote an event which was redacted.
-- Locks: SHARE ROW EXCLUSIVE on runs while it gets its trigger, briefly.
-- +goose Up
SET LOCAL lock_timeout = '5s';
-- +goose StatementBegin
CREATE FUNCTION forget_finds() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
BEGIN
  NEW.asked := NEW.asked - 'finds';
  UPDATE redactions SET asked = asked - 'finds', updated_at = clock_now() WHERE run = NEW.run AND asked ? 'finds';
  RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER runs_forget_finds BEFORE UPDATE ON runs FOR EACH ROW WHEN (NEW.job = 'redact' AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION forget_finds();
UPDATE runs SET updated_at = updated_at WHERE job = 'redact' AND ended_at IS NOT NULL AND asked ? 'finds';

-- +goose StatementBegin
-- Ends the audit of a redaction that is under way, and forgets the digests of what was looked for, and the details of runs that may quote what is redacted: a
-- rebuild or a retention that failed names the event and why.
CREATE OR REPLACE FUNCTION end_redaction(p_run bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
BEGIN
  PERFORM FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'end redaction: run % is no redaction that is under way', p_run USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE redactions SET asked = asked - 'finds', ended_at = clock_now(), updated_at = clock_now() WHERE run = p_run AND ended_at IS NULL;
  UPDATE runs SET asked = asked - 'finds' WHERE run = p_run;
  UPDATE runs r SET detail = 'it told of an event that was redacted' WHERE r.detail <> '' AND EXISTS (
    SELECT FROM regexp_matches(r.detail, '\mevent ([0-9]{1,19})\M', 'g') AS m(found)
    JOIN redacted d ON d.event = CASE WHEN m.found[1]::numeric <= 9223372036854775807 THEN m.found[1]::bigint END);
END
$$;
-- +goose StatementEnd
ALTER FUNCTION forget_finds() OWNER TO postern_maintenance;
REVOKE EXECUTE ON FUNCTION forget_finds() FROM PUBLIC;
