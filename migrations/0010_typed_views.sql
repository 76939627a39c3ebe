-- Functions that the views of `postern views` read the fields of states with. A value that does not
-- fit gives null, never an error: one odd object must not make a view unreadable, and an index on a
-- column must not stop the apply transaction.
-- Locks: none.
-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION as_boolean(field jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE field WHEN 'true'::jsonb THEN true WHEN 'false'::jsonb THEN false END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION as_bigint(field jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  -- The path reads the field once; CASE would read it for each condition.
  SELECT jsonb_path_query_first(field, 'strict $ ? (@.type() == "number" && @ >= -9223372036854775808 '
    '&& @ <= 9223372036854775807 && @.floor() == @)')::bigint
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION as_numeric(field text) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
-- At most 1,000 characters, because a longer number does not fit into an index.
BEGIN
  IF octet_length(field) <= 1000 AND field ~ '^-?[0-9]+([.][0-9]+)?$' THEN
    RETURN field::numeric;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Rounds first: float8 refuses a number as small as 1e-400.
CREATE FUNCTION as_unix_time(field jsonb) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT to_timestamp(round(jsonb_path_query_first(field, 'strict $ ? (@.type() == "number" && @ >= 0 '
    '&& @ < 253402300799)')::numeric, 6)::float8)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION as_unix_ms_time(field jsonb) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT to_timestamp(round(jsonb_path_query_first(field, 'strict $ ? (@.type() == "number" && @ >= 0 '
    '&& @ < 253402300799000)')::numeric, 3)::float8 / 1000)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION as_time(field text) RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
-- RFC 3339, also with a space instead of the T. The text has its zone, so that no setting of the
-- session changes the result.
BEGIN
  IF field ~ ('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]'
      ':([0-5][0-9]([.][0-9]{1,9})?|60)([Zz]|[+-](0[0-9]|1[0-5]):[0-5][0-9])$')
    AND left(field, 4) <> '0000'
    AND substr(field, 9, 2)::int <= extract(day FROM
      make_date(left(field, 4)::int, substr(field, 6, 2)::int, 1) + interval '1 month' - interval '1 day')
  THEN
    RETURN field::timestamptz;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION as_indexed_text(field text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
-- At most 2,000 bytes, because a longer text does not fit into an index.
BEGIN
  IF octet_length(field) <= 2000 THEN
    RETURN field;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

ALTER FUNCTION as_boolean(jsonb) OWNER TO postern_maintenance;
ALTER FUNCTION as_bigint(jsonb) OWNER TO postern_maintenance;
ALTER FUNCTION as_numeric(text) OWNER TO postern_maintenance;
ALTER FUNCTION as_unix_time(jsonb) OWNER TO postern_maintenance;
ALTER FUNCTION as_unix_ms_time(jsonb) OWNER TO postern_maintenance;
ALTER FUNCTION as_time(text) OWNER TO postern_maintenance;
ALTER FUNCTION as_indexed_text(text) OWNER TO postern_maintenance;
