-- A schema of version 1, as it was shipped, with a record in every state.

CREATE TABLE oncegate.meta (
    id      integer PRIMARY KEY CHECK (id = 1),
    version integer NOT NULL,
    high    bigint NOT NULL,
    ahead   bigint NOT NULL
);

INSERT INTO oncegate.meta VALUES (1, 1, 0, 0);

-- Wide columns first: a bigint after a text would be padded.
CREATE TABLE oncegate.claims (
    fence        bigint NOT NULL,
    lease_until  bigint NOT NULL,
    first_seen   bigint NOT NULL,
    expires_at   bigint,
    completed_at bigint,
    occurred_at  bigint,
    waiting      bigint GENERATED ALWAYS AS (CASE WHEN payload IS NOT NULL AND state <> 'D' THEN lease_until END) STORED,
    attempts     integer NOT NULL,
    dead         boolean GENERATED ALWAYS AS (CASE WHEN state = 'D' THEN true END) STORED,
    namespace    text COLLATE "C" NOT NULL,
    key          bytea NOT NULL,
    state        text NOT NULL CHECK (state IN ('P', 'R', 'C', 'D')),
    owner        bytea NOT NULL,
    payload_hash bytea NOT NULL,
    source       text NOT NULL,
    type         text,
    entity       text,
    delivery_id  text,
    result       bytea,
    error        text,
    payload      bytea,
    PRIMARY KEY (namespace, key)
);

CREATE INDEX dead_letters ON oncegate.claims (namespace, key) WHERE dead;

CREATE INDEX waiting ON oncegate.claims (namespace, waiting) WHERE waiting IS NOT NULL;

CREATE INDEX lines ON oncegate.claims (namespace, entity, state, (coalesce(occurred_at, first_seen)), first_seen, key)
WHERE waiting IS NOT NULL;

CREATE TABLE oncegate.documents (
    version    bigint NOT NULL,
    expires_at bigint NOT NULL,
    namespace  text COLLATE "C" NOT NULL,
    key        bytea NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (namespace, key)
);

CREATE VIEW oncegate.readable AS
SELECT namespace, encode(key, 'hex') AS key, state, attempts, source, type, entity, delivery_id, error,
       to_timestamp(occurred_at / 1e6) AS occurred_at, to_timestamp(first_seen / 1e6) AS first_seen,
       to_timestamp(completed_at / 1e6) AS completed_at, to_timestamp(expires_at / 1e6) AS expires_at,
       CASE WHEN state = 'P' THEN to_timestamp(lease_until / 1e6) END AS lease_until,
       encode(result, 'escape') AS result, octet_length(payload) AS payload_bytes
FROM oncegate.claims;

-- The store's time in µs: the server's clock, or `clock` in its place. It never goes back by more than a second,
-- also when the clock is set back or a replica with a slower one takes over: every half second the time is noted in
-- `high`, and when the clock is found behind that, time goes on at the clock's pace, `ahead` of it, until the clock has
-- caught up. Noting it with every batch would have every batch wait for every other; so nobody waits to note it.
CREATE FUNCTION oncegate.tick(clock bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    second CONSTANT bigint := 1000000;
    wall CONSTANT bigint := coalesce(clock, (extract(epoch FROM clock_timestamp()) * second)::bigint);
    mark record;
    now bigint;
BEGIN
    SELECT high, ahead INTO mark FROM oncegate.meta WHERE id = 1;
    now := wall + mark.ahead;
    IF now >= mark.high AND now < mark.high + second / 2 THEN
        RETURN now;
    END IF;
    IF now < mark.high THEN
        now := mark.high + second; -- what was judged since it was noted is no later than that
    ELSIF wall >= mark.high + second THEN
        now := wall;
    END IF;
    UPDATE oncegate.meta SET high = now, ahead = now - wall
    WHERE id = (SELECT id FROM oncegate.meta WHERE id = 1 AND high = mark.high FOR UPDATE SKIP LOCKED);
    RETURN now;
END $$;

-- Claim each key of a batch. One row without a place if all of them were absent and are granted now; otherwise a row
-- for each with its place in the batch, the verdict (G granted, D duplicate, F in flight, C conflict, B buried) and
-- the record. A key without a row was there and then was not: the caller asks again.
--
-- Nobody waits here but for another batch that is just writing the same key. Rows that have to change are locked first
-- if nobody else has them; who has them (a takeover, a settle, a handler's transaction that outlives its lease) holds
-- the event, so it is in flight.
CREATE FUNCTION oncegate.claim(
    clock bigint, namespaces text[], keys bytea[], owners bytea[], hashes bytea[], leases bigint[], retentions bigint[],
    binding boolean[], marking boolean[], sliding bigint[],
    sources text[], types text[], entities text[], occurrences bigint[], deliveries text[]
) RETURNS TABLE (
    place bigint, verdict text, at bigint,
    state text, owner bytea, fence bigint, lease_until bigint, attempts integer, payload_hash bytea, expires_at bigint,
    source text, type text, entity text, occurred_at bigint, delivery_id text,
    first_seen bigint, completed_at bigint, result bytea, error text, payload bytea
) LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    now bigint := oncegate.tick(clock);
    fresh bigint;
    free bigint[];
BEGIN
    INSERT INTO oncegate.claims AS c (
        namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
        source, type, entity, occurred_at, delivery_id, first_seen, completed_at
    )
    SELECT a.namespace, a.key, CASE WHEN a.marks THEN 'C' ELSE 'P' END, a.owner, now, now + a.lease, 1, a.hash,
           now + a.retention, a.source, a.type, a.entity, a.occurred_at, a.delivery_id, now,
           CASE WHEN a.marks THEN now END
    FROM unnest(namespaces, keys, owners, hashes, leases, retentions, marking,
                sources, types, entities, occurrences, deliveries)
         AS a (namespace, key, owner, hash, lease, retention, marks, source, type, entity, occurred_at, delivery_id)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS fresh = ROW_COUNT;
    IF fresh = cardinality(keys) THEN
        at := now;
        RETURN NEXT;
        RETURN;
    END IF;

    now := oncegate.tick(clock); -- it may have waited
    free := ARRAY(
        SELECT a.place
        FROM unnest(namespaces, keys, retentions, sliding) WITH ORDINALITY
             AS a (namespace, key, retention, slides, place)
        JOIN oncegate.claims c ON c.namespace = a.namespace AND c.key = a.key
        WHERE c.expires_at <= now OR c.state = 'R' OR (c.state = 'P' AND c.lease_until <= now)
           OR (c.state = 'C' AND least(now + a.retention, c.first_seen + a.slides) > c.expires_at)
        FOR UPDATE OF c SKIP LOCKED
    );

    -- What this batch has inserted above is met again here, as a claim of its own owner: granted.
    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT a.*, c AS was, a.place = ANY (free) AS free,
            CASE
                WHEN c.expires_at <= now THEN 'new'
                WHEN c.owner = a.owner AND (c.state = 'C' OR (c.state = 'P' AND c.lease_until > now)) THEN 'mine'
                WHEN a.binds AND c.payload_hash <> a.hash THEN 'conflict'
                WHEN c.state = 'P' AND c.lease_until > now THEN 'held'
                WHEN c.state = 'R' AND c.payload IS NOT NULL THEN 'done'
                WHEN c.state = 'R' AND c.owner = a.owner THEN 'held'
                WHEN c.state IN ('P', 'R') THEN 'again'
                WHEN c.state = 'C' AND least(now + a.retention, c.first_seen + a.slides) > c.expires_at THEN 'slide'
                WHEN c.state = 'C' THEN 'done'
                ELSE 'dead'
            END AS rule
        FROM unnest(namespaces, keys, owners, hashes, leases, retentions, binding, marking, sliding,
                    sources, types, entities, occurrences, deliveries) WITH ORDINALITY
             AS a (namespace, key, owner, hash, lease, retention, binds, marks, slides,
                   source, type, entity, occurred_at, delivery_id, place)
        JOIN oncegate.claims c ON c.namespace = a.namespace AND c.key = a.key
    ),
    ruled AS MATERIALIZED (
        SELECT j.*, j.free AND j.rule = 'new' AS new, j.free AND j.rule IN ('new', 'again') AS grants,
               j.free AND j.rule = 'slide' AS slid
        FROM judged j
    ),
    after AS MATERIALIZED (
        SELECT r.place, r.namespace, r.key, r.grants OR r.slid AS changed,
            CASE
                WHEN r.grants OR r.rule = 'mine' THEN 'G'
                WHEN r.rule = 'conflict' THEN 'C'
                WHEN r.rule IN ('done', 'slide') THEN 'D'
                WHEN r.rule = 'dead' THEN 'B'
                ELSE 'F'
            END AS verdict,
            CASE WHEN NOT r.grants THEN (r.was).state WHEN r.marks THEN 'C' ELSE 'P' END AS state,
            CASE WHEN r.grants THEN r.owner ELSE (r.was).owner END AS owner,
            CASE WHEN r.new THEN now WHEN r.grants THEN (r.was).fence + 1 ELSE (r.was).fence END AS fence,
            CASE WHEN r.grants THEN now + r.lease ELSE (r.was).lease_until END AS lease_until,
            CASE WHEN r.new THEN 1 WHEN r.grants THEN (r.was).attempts + 1 ELSE (r.was).attempts END AS attempts,
            CASE WHEN r.grants THEN r.hash ELSE (r.was).payload_hash END AS payload_hash,
            CASE
                WHEN r.slid THEN least(now + r.retention, (r.was).first_seen + r.slides)
                WHEN NOT r.grants THEN (r.was).expires_at
                WHEN r.new OR r.marks OR (r.was).payload IS NULL THEN now + r.retention
            END AS expires_at,
            CASE WHEN r.new THEN r.source ELSE (r.was).source END AS source,
            CASE WHEN r.new THEN r.type ELSE (r.was).type END AS type,
            CASE WHEN r.new THEN r.entity ELSE (r.was).entity END AS entity,
            CASE WHEN r.new THEN r.occurred_at ELSE (r.was).occurred_at END AS occurred_at,
            CASE WHEN r.new THEN r.delivery_id ELSE (r.was).delivery_id END AS delivery_id,
            CASE WHEN r.new THEN now ELSE (r.was).first_seen END AS first_seen,
            CASE WHEN r.grants AND r.marks THEN now WHEN NOT r.new THEN (r.was).completed_at END AS completed_at,
            CASE WHEN NOT r.new THEN (r.was).result END AS result,
            CASE WHEN NOT r.new THEN (r.was).error END AS error,
            CASE WHEN NOT (r.new OR (r.grants AND r.marks)) THEN (r.was).payload END AS payload
        FROM ruled r
    ),
    written AS (
        UPDATE oncegate.claims c
        SET state = a.state, owner = a.owner, fence = a.fence, lease_until = a.lease_until, attempts = a.attempts,
            payload_hash = a.payload_hash, expires_at = a.expires_at, source = a.source, type = a.type,
            entity = a.entity, occurred_at = a.occurred_at, delivery_id = a.delivery_id, first_seen = a.first_seen,
            completed_at = a.completed_at, result = a.result, error = a.error, payload = a.payload
        FROM after a
        WHERE a.changed AND c.namespace = a.namespace AND c.key = a.key
    )
    SELECT a.place, a.verdict, now, a.state, a.owner, a.fence, a.lease_until, a.attempts, a.payload_hash, a.expires_at,
           a.source, a.type, a.entity, a.occurred_at, a.delivery_id,
           a.first_seen, a.completed_at, a.result, a.error, a.payload
    FROM after a;
END $$;

-- End each claim of a batch as its ending says (C complete, R release, D bury), or renew it (P). The places that were
-- accepted, or null if all were. `spans` are the retentions, leases or delays, `bodies` the results or payloads.
CREATE FUNCTION oncegate.settle(
    clock bigint, endings text[], namespaces text[], keys bytea[], owners bytea[], fences bigint[], spans bigint[],
    bodies bytea[], errors text[], unstarted boolean[]
) RETURNS bigint[]
LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
    accepted bigint;
BEGIN
    UPDATE oncegate.claims c
    SET state = a.ending,
        lease_until = CASE WHEN a.ending IN ('P', 'R') AND NOT a.unstarted THEN now + a.span ELSE 0 END,
        attempts = c.attempts - a.unstarted::integer,
        expires_at = CASE
            WHEN a.ending IN ('C', 'D') THEN now + a.span
            WHEN a.ending = 'P' AND c.expires_at < now + a.span THEN now + a.span
            ELSE c.expires_at
        END,
        completed_at = CASE a.ending WHEN 'C' THEN now ELSE c.completed_at END,
        result = CASE a.ending WHEN 'C' THEN a.body ELSE c.result END,
        error = CASE WHEN a.ending IN ('C', 'D') OR a.error <> '' THEN a.error ELSE c.error END,
        payload = CASE a.ending WHEN 'D' THEN a.body WHEN 'C' THEN NULL ELSE c.payload END
    FROM unnest(endings, namespaces, keys, owners, fences, spans, bodies, errors, unstarted)
         AS a (ending, namespace, key, owner, fence, span, body, error, unstarted)
    WHERE c.namespace = a.namespace AND c.key = a.key AND c.state = 'P' AND c.owner = a.owner AND c.fence = a.fence
      AND (c.expires_at IS NULL OR c.expires_at > now);
    GET DIAGNOSTICS accepted = ROW_COUNT;
    IF accepted = cardinality(keys) THEN
        RETURN NULL;
    END IF;

    -- Settled this way now, or before: the same settle again is accepted too. What was renewed is still in progress.
    RETURN ARRAY(
        SELECT a.place
        FROM unnest(endings, namespaces, keys, owners, fences) WITH ORDINALITY
             AS a (ending, namespace, key, owner, fence, place)
        JOIN oncegate.claims c ON c.namespace = a.namespace AND c.key = a.key
        WHERE c.state = a.ending AND c.owner = a.owner AND c.fence = a.fence
          AND (c.expires_at IS NULL OR c.expires_at > now)
    );
END $$;

-- Keep each payload of a batch. One row without a place if all of their keys were absent; otherwise a row for each with
-- its place, the verdict (A admitted, else as of claim) and the record. A key without a row was there and then was not.
-- Nobody waits here but for another batch that is just writing the same key.
CREATE FUNCTION oncegate.admit(
    clock bigint, namespaces text[], keys bytea[], owners bytea[], hashes bytea[], payloads bytea[], binding boolean[],
    sources text[], types text[], entities text[], occurrences bigint[], deliveries text[], behind bigint[]
) RETURNS TABLE (
    place bigint, verdict text, at bigint,
    state text, owner bytea, fence bigint, lease_until bigint, attempts integer, payload_hash bytea, expires_at bigint,
    source text, type text, entity text, occurred_at bigint, delivery_id text,
    first_seen bigint, completed_at bigint, result bytea, error text, payload bytea
) LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
    new bytea[];
    was oncegate.claims;
    told text;
BEGIN
    WITH written AS (
        INSERT INTO oncegate.claims (
            namespace, key, state, owner, fence, lease_until, attempts, payload_hash,
            source, type, entity, occurred_at, delivery_id, first_seen, payload
        )
        SELECT a.namespace, a.key, 'R', a.owner, now, now, 0, a.hash,
               a.source, a.type, a.entity, a.occurred_at, a.delivery_id, now + a.behind, a.payload
        FROM unnest(namespaces, keys, owners, hashes, payloads, sources, types, entities, occurrences, deliveries, behind)
             AS a (namespace, key, owner, hash, payload, source, type, entity, occurred_at, delivery_id, behind)
        ON CONFLICT DO NOTHING RETURNING key
    )
    SELECT coalesce(array_agg(w.key), '{}') INTO new FROM written w;
    IF cardinality(new) = cardinality(keys) THEN
        RETURN QUERY SELECT NULL::bigint, 'A', now, NULL::text, NULL::bytea, NULL::bigint, NULL::bigint, NULL::integer,
            NULL::bytea, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::bigint,
            NULL::bigint, NULL::bytea, NULL::text, NULL::bytea;
        RETURN;
    END IF;

    FOR i IN 1 .. cardinality(keys) LOOP
        SELECT c.* INTO was FROM oncegate.claims c WHERE c.namespace = namespaces[i] AND c.key = keys[i];
        CONTINUE WHEN NOT FOUND;
        told := CASE
            WHEN was.expires_at <= now THEN 'new'
            WHEN was.state = 'R' AND was.payload IS NOT NULL AND was.owner = owners[i] THEN 'A'
            WHEN was.state = 'P' AND was.payload IS NOT NULL AND was.owner = owners[i] AND was.lease_until > now THEN 'G'
            WHEN binding[i] AND was.payload_hash <> hashes[i] THEN 'C'
            WHEN was.state = 'P' AND was.lease_until > now AND was.payload IS NULL THEN 'F'
            WHEN was.state IN ('R', 'P') AND was.payload IS NULL THEN 'attach'
            WHEN was.state = 'D' THEN 'B'
            ELSE 'D'
        END;
        IF told IN ('new', 'attach') THEN
            PERFORM FROM oncegate.claims c
            WHERE c.namespace = namespaces[i] AND c.key = keys[i] AND c.owner = was.owner AND c.fence = was.fence
              AND c.state = was.state AND c.lease_until = was.lease_until
              AND c.expires_at IS NOT DISTINCT FROM was.expires_at
            FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN -- somebody is at it: a takeover, a settle, a renewal, a sweep
                told := 'F';
            ELSIF told = 'new' THEN
                UPDATE oncegate.claims c
                SET state = 'R', owner = owners[i], fence = now, lease_until = now, attempts = 0,
                    payload_hash = hashes[i], expires_at = NULL, source = sources[i], type = types[i],
                    entity = entities[i], occurred_at = occurrences[i], delivery_id = deliveries[i],
                    first_seen = now + behind[i],
                    completed_at = NULL, result = NULL, error = NULL, payload = payloads[i]
                WHERE c.namespace = namespaces[i] AND c.key = keys[i]
                RETURNING c.* INTO was;
                told := 'A';
            ELSE
                UPDATE oncegate.claims c
                SET state = 'R', owner = owners[i], lease_until = now, expires_at = NULL, payload_hash = hashes[i],
                    payload = payloads[i]
                WHERE c.namespace = namespaces[i] AND c.key = keys[i]
                RETURNING c.* INTO was;
                told := 'A';
            END IF;
        END IF;
        RETURN QUERY SELECT i::bigint, told, now, was.state, was.owner, was.fence, was.lease_until, was.attempts,
            was.payload_hash, was.expires_at, was.source, was.type, was.entity, was.occurred_at, was.delivery_id,
            was.first_seen, was.completed_at, was.result, was.error, was.payload;
    END LOOP;
END $$;

-- Grant what waits in a namespace, the first let go first, to as many owners as there are. Who else is at one has it.
CREATE FUNCTION oncegate.take(clock bigint, name text, owners bytea[], leases bigint[])
RETURNS SETOF oncegate.claims LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
BEGIN
    RETURN QUERY
    WITH free AS MATERIALIZED (
        SELECT c.key, c.waiting FROM oncegate.claims c
        WHERE c.namespace = name AND c.waiting <= now
        ORDER BY c.waiting LIMIT cardinality(owners)
        FOR UPDATE SKIP LOCKED
    ),
    given AS (
        SELECT f.key, w.owner, w.lease
        FROM (SELECT free.key, row_number() OVER (ORDER BY free.waiting, free.key) AS place FROM free) f
        JOIN unnest(owners, leases) WITH ORDINALITY AS w (owner, lease, place) ON w.place = f.place
    )
    UPDATE oncegate.claims c
    SET state = 'P', owner = g.owner, fence = c.fence + 1, lease_until = now + g.lease, attempts = c.attempts + 1
    FROM given g WHERE c.namespace = name AND c.key = g.key
    RETURNING c.*;
END $$;

-- The first in the line of an entity, if it is due and nobody is at another of that line. Those that somebody holds or
-- held are few, however long the line is.
CREATE FUNCTION oncegate.head(name text, line text, now bigint) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT h.key FROM (
        (
            SELECT coalesce(c.occurred_at, c.first_seen) AS at, c.first_seen, c.key, c.waiting FROM oncegate.claims c
            WHERE c.waiting IS NOT NULL AND c.namespace = name AND c.entity = line AND c.state = 'R'
            ORDER BY coalesce(c.occurred_at, c.first_seen), c.first_seen, c.key LIMIT 1
        )
        UNION ALL
        (
            SELECT coalesce(c.occurred_at, c.first_seen) AS at, c.first_seen, c.key, c.waiting FROM oncegate.claims c
            WHERE c.waiting IS NOT NULL AND c.namespace = name AND c.entity = line AND c.state = 'P'
        )
        ORDER BY at, first_seen, key LIMIT 1
    ) h
    WHERE h.waiting <= now AND NOT EXISTS (
        SELECT FROM oncegate.claims c
        WHERE c.waiting > now AND c.namespace = name AND c.entity = line AND c.state = 'P'
    )
$$;

-- The same in the order of each entity. A line is looked at once, however long it is. A lock on the entity keeps two who
-- take at once from each other: who has it sees, in a statement of its own, what the one before has written.
CREATE FUNCTION oncegate.take_in_order(clock bigint, name text, owners bytea[], leases bigint[])
RETURNS SETOF oncegate.claims LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
    seen text[] := '{}';
    given integer := 0;
    due record;
    first bytea;
BEGIN
    FOR due IN
        SELECT c.key, c.entity FROM oncegate.claims c
        WHERE c.namespace = name AND c.waiting <= now ORDER BY c.waiting
    LOOP
        EXIT WHEN given = cardinality(owners);
        CONTINUE WHEN due.entity = ANY (seen);
        first := due.key;
        IF due.entity IS NOT NULL THEN
            seen := seen || due.entity;
            CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('oncegate ' || name || ' ' || due.entity, 0));
            first := oncegate.head(name, due.entity, now);
        END IF;
        PERFORM FROM oncegate.claims c
        WHERE c.namespace = name AND c.key = first AND c.waiting <= now FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        given := given + 1;
        RETURN QUERY
        UPDATE oncegate.claims c
        SET state = 'P', owner = owners[given], fence = c.fence + 1, lease_until = now + leases[given],
            attempts = c.attempts + 1
        WHERE c.namespace = name AND c.key = first
        RETURNING c.*;
    END LOOP;
END $$;

-- A person sends dead letters back to work, or forgets records; the places where that was so.
CREATE FUNCTION oncegate.redrive(clock bigint, namespaces text[], keys bytea[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
BEGIN
    RETURN QUERY
    UPDATE oncegate.claims c SET state = 'R', owner = '', attempts = 0, expires_at = NULL
    FROM unnest(namespaces, keys) WITH ORDINALITY AS a (namespace, key, place)
    WHERE c.namespace = a.namespace AND c.key = a.key AND c.state = 'D' AND c.expires_at > now
    RETURNING a.place;
END $$;

CREATE FUNCTION oncegate.forget(clock bigint, namespaces text[], keys bytea[], only_dead boolean[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
BEGIN
    RETURN QUERY
    DELETE FROM oncegate.claims c
    USING unnest(namespaces, keys, only_dead) WITH ORDINALITY AS a (namespace, key, only_dead, place)
    WHERE c.namespace = a.namespace AND c.key = a.key AND (c.state = 'D' OR NOT a.only_dead)
      AND (c.expires_at IS NULL OR c.expires_at > now)
    RETURNING a.place;
END $$;

-- Write documents whose version is as it was loaded; the places where it was. One by one, since an absent row cannot
-- be locked and so one statement for those that are there and one for the others would break the order of locks.
CREATE FUNCTION oncegate.swap(
    clock bigint, namespaces text[], keys bytea[], versions bigint[], bodies bytea[], retentions bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
BEGIN
    FOR place IN 1 .. cardinality(keys) LOOP
        IF versions[place] = 0 THEN
            INSERT INTO oncegate.documents AS d (namespace, key, version, body, expires_at)
            VALUES (namespaces[place], keys[place], now, bodies[place], now + retentions[place])
            ON CONFLICT (namespace, key) DO UPDATE
            SET version = EXCLUDED.version, body = EXCLUDED.body, expires_at = EXCLUDED.expires_at
            WHERE d.expires_at <= now;
        ELSE
            UPDATE oncegate.documents
            SET version = version + 1, body = bodies[place], expires_at = now + retentions[place]
            WHERE namespace = namespaces[place] AND key = keys[place] AND version = versions[place] AND expires_at > now;
        END IF;
        IF FOUND THEN
            RETURN NEXT place;
        END IF;
    END LOOP;
END $$;

-- Drop the expired ones of so many rows of a table, and tell where to go on. In the order of its pages, not of an
-- index on the expiry, which every claim and completion would have to be written into. Rows can be few and far
-- between until a vacuum, so the pages are bounded too.
CREATE FUNCTION oncegate.sweep(clock bigint, swept regclass, start tid, most bigint) RETURNS tid
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
    pages CONSTANT bigint := pg_relation_size(swept) / current_setting('block_size')::bigint;
    page CONSTANT bigint := (start::text::point)[0]::bigint + most / 2;
    stretch record;
BEGIN
    EXECUTE format(
        'SELECT count(*) AS seen, max(place) AS last, array_agg(place) FILTER (WHERE expires_at <= $3) AS expired
         FROM (SELECT ctid AS place, expires_at FROM %s WHERE ctid > $1 AND ctid < $2 LIMIT $4) each', swept
    ) INTO stretch USING start, format('(%s,0)', page)::tid, now, most;
    EXECUTE format(
        'DELETE FROM %s WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM %1$s WHERE ctid = ANY ($1) AND expires_at <= $2 FOR UPDATE SKIP LOCKED))', swept
    ) USING stretch.expired, now;
    RETURN CASE
        WHEN stretch.seen = most THEN stretch.last
        WHEN page < pages THEN format('(%s,0)', page)::tid
        ELSE '(0,0)'::tid
    END;
END $$;

-- A handler's transaction may end only by the completion of its claim. It inserts a pledge when it begins, and the
-- completion takes it away; a COMMIT in between finds it and fails.
CREATE TABLE oncegate.pledges (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);

CREATE FUNCTION oncegate.hold_to_pledge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM oncegate.pledges WHERE id = NEW.id) THEN
        RAISE EXCEPTION 'a handler may not commit: what it writes is committed together with its completion';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER hold_to_pledge AFTER INSERT ON oncegate.pledges
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION oncegate.hold_to_pledge();

INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x61646d69747465642d2d2d2d2d2d2d2d', 'R', '\x626f622e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000002, 1765551752000002, 0, '\x69696969696969696969696969696969', NULL, 'plain', NULL, NULL, NULL, NULL, 1765551752000002, NULL, NULL, NULL, '\x7b226964223a226576742d35227d');
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x6275726965642d2d2d2d2d2d2d2d2d2d', 'D', '\x616e6e2e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000002, 0, 1, '\x68686868686868686868686868686868', 1768143752000002, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000002, NULL, NULL, 'ValueError: boom', '\x7b226964223a226576742d34227d');
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x636f6d706c657465642d2d2d2d2d2d2d', 'C', '\x616e6e2e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000001, 0, 1, '\x68686868686868686868686868686868', 1766156552000002, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000001, 1765551752000002, '\x7b226f6b223a747275657d', NULL, NULL);
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x68656c642d2d2d2d2d2d2d2d2d2d2d2d', 'P', '\x616e6e2e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000000, 1765551782000000, 1, '\x68686868686868686868686868686868', 1766156552000000, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000000, NULL, NULL, NULL, NULL);
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x6d61726b65642d2d2d2d2d2d2d2d2d2d', 'C', '\x616e6e2e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000002, 1765551782000002, 1, '\x68686868686868686868686868686868', 1766156552000002, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000002, 1765551752000002, NULL, NULL, NULL);
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x6e756c6c2d2d2d2d2d2d2d2d2d2d2d2d', 'C', '\x616e6e2e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000002, 0, 1, '\x68686868686868686868686868686868', 1766156552000002, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000002, 1765551752000002, '\x6e756c6c', NULL, NULL);
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x726564726976656e2d2d2d2d2d2d2d2d', 'R', '\x', 1765551752000002, 0, 0, '\x68686868686868686868686868686868', NULL, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000002, NULL, NULL, 'ValueError: boom', '\x7b226964223a226576742d37227d');
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x72656c65617365642d2d2d2d2d2d2d2d', 'R', '\x616e6e2e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000001, 1765551752000001, 1, '\x68686868686868686868686868686868', 1766156552000001, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000001, NULL, NULL, 'boom', NULL);
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x726574726965642d2d2d2d2d2d2d2d2d', 'P', '\x6369642e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000003, 1765551782000002, 2, '\x68686868686868686868686868686868', 1766156552000002, 'genesys', 'v2.detail.events.conversation.{id}.customer.end', 'conversation-1', 1765551751000000, 'evt-1', 1765551752000002, NULL, NULL, 'boom', NULL);
INSERT INTO oncegate.claims (
    namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
) VALUES ('crm', '\x74616b656e2d2d2d2d2d2d2d2d2d2d2d', 'P', '\x626f622e2e2e2e2e2e2e2e2e2e2e2e2e', 1765551752000003, 1765551782000002, 1, '\x69696969696969696969696969696969', NULL, 'plain', NULL, NULL, NULL, NULL, 1765551752000002, NULL, NULL, NULL, '\x7b226964223a226576742d36227d');
INSERT INTO oncegate.documents (version, expires_at, namespace, key, body) VALUES (1765551752000002, 1766156552000002, 'crm', '\x646f63756d656e742d2d2d2d2d2d2d2d', '\x5b5d');
UPDATE oncegate.meta SET high = 1765551752000000, ahead = 0;
