-- After a fail-over to an asynchronous standby, ids that the old primary had assigned could be assigned again: a worker
-- that still holds a lost job would settle another one. So ids are skipped when the server is on another timeline.

-- Called once by every new connection to a URL with several hosts, before it writes. Returns the timeline of the server;
-- NULL where the server does not report it. The lock is taken only after a change. With its owner's rights, as for `free_key`.
CREATE FUNCTION forebay.enter_timeline() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now integer;
BEGIN
    BEGIN
        v_now := ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer;
    EXCEPTION WHEN undefined_function OR insufficient_privilege OR feature_not_supported OR object_not_in_prerequisite_state THEN
        RETURN NULL;
    END;
    IF NOT EXISTS (SELECT FROM forebay.timeline WHERE number = v_now) THEN
        LOCK TABLE forebay.timeline IN EXCLUSIVE MODE;
        UPDATE forebay.timeline SET number = v_now WHERE number <> v_now;
        IF FOUND THEN
            -- More calls than a standby can be behind: a million.
            PERFORM setval('forebay.job_id', nextval('forebay.job_id') + 1000000000);
        END IF;
    END IF;
    RETURN v_now;
END
$$;

-- The timeline on which the schema was made; 0 where the server does not report it.
INSERT INTO forebay.timeline (number) SELECT coalesce(forebay.enter_timeline(), 0);
