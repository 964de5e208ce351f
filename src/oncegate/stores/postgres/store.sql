-- The Postgres store. All of it is in one schema, written `oncegate` here and replaced by the one that was chosen.
--
--   claims                one row per key
--   ┌───────────────┬──────────┬──────────────────────────────────────────────────────────────────┐
--   │ namespace     │ text     │ ┐ primary key                                                    │
--   │ key           │ bytea    │ ┘ 16 bytes                                                       │
--   │ state         │ text     │ P in progress, R released, C completed, D dead letter            │
--   │ owner         │ bytea    │ 16 random bytes of the request that holds or held the claim      │
--   │ fence         │ bigint   │ rises with every grant                                           │
--   │ lease_until   │ bigint   │ µs; of R, before when it is not to be taken                      │
--   │ attempts      │ integer  │ grants whose handler may have started                            │
--   │ payload_hash  │ bytea    │ of the event's body                                              │
--   │ expires_at    │ bigint   │ µs; null while an unprocessed payload is held                    │
--   │ source … delivery_id     │ what explains the record to a person; occurred_at in µs          │
--   │ first_seen    │ bigint   │ µs                                                               │
--   │ completed_at  │ bigint   │ µs                                                               │
--   │ result        │ bytea    │ JSON of what the handler returned                                │
--   │ error         │ text     │ of the last attempt that failed                                  │
--   │ payload       │ bytea    │ as delivered; only while it is needed                            │
--   │ waiting       │ bigint   │ lease_until of what holds a payload to be run, else null         │
--   │ dead          │ boolean  │ true for a dead letter, else null                                │
--   │ lost          │ integer  │ attempts in a row that were never settled                        │
--   │ unavailable_since        │ µs; first of the releases in a row that blamed another service   │
--   │ handed_to     │ text     │ of a completed event, the place that it was published to         │
--   └───────────────┴──────────┴──────────────────────────────────────────────────────────────────┘
--   documents             one row per versioned document: namespace, key → version, body, expires_at
--   meta                  one row: the version of this schema, and what keeps time from going back
--   pledges               never a committed row: what a handler's transaction owes before it may commit
--   readable              the claims for people: keys in hex, times as times
--
-- `waiting` and `dead` stay null on the way of nearly every key, from P to C. Were the indexes on `state` and
-- `lease_until` themselves, every completion would have to be written into all of them.
--
-- Each verb is one call of a function here with the batch as arrays, no address twice, sorted by address. All waiting
-- for locks is in that order, so batches never wait for each other in a circle: the planner's other ways to join are
-- off in every function that waits, and those that are left (nested loop, merge) visit rows in the order of the
-- arrays or of the primary key. Plans are made once for a connection: making one takes longer than what it is for.
-- The rules are those of the table in claims.py; `oncegate.testing` compares the two step by step.
--
-- A new schema is a new section below, "schema N", that turns one of version N-1 into one of version N. Processes of
-- the version before may still be running: a function may get better, but other arguments want another name. What a
-- later section replaces is left out of those before it.

-- name: schema 1
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

-- A person forgets records; the places where that was so.
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

-- `lost` counts the attempts in a row that were never settled, `unavailable_since` is the time of the first of the
-- releases in a row that blamed something the handler calls, `handed_to` the place that an event was published to.
-- name: schema 2
ALTER TABLE oncegate.claims
    ADD COLUMN lost integer NOT NULL DEFAULT 0,
    ADD COLUMN unavailable_since bigint,
    ADD COLUMN handed_to text;

CREATE OR REPLACE VIEW oncegate.readable AS
SELECT namespace, encode(key, 'hex') AS key, state, attempts, source, type, entity, delivery_id, error,
       to_timestamp(occurred_at / 1e6) AS occurred_at, to_timestamp(first_seen / 1e6) AS first_seen,
       to_timestamp(completed_at / 1e6) AS completed_at, to_timestamp(expires_at / 1e6) AS expires_at,
       CASE WHEN state = 'P' THEN to_timestamp(lease_until / 1e6) END AS lease_until,
       encode(result, 'escape') AS result, octet_length(payload) AS payload_bytes,
       lost, to_timestamp(unavailable_since / 1e6) AS unavailable_since, handed_to
FROM oncegate.claims;

-- Claim each key of a batch. One row without a place if all of them were absent and are granted now; otherwise a row
-- for each with its place in the batch, the verdict (G granted, D duplicate, F in flight, C conflict, B buried) and
-- the record. A key without a row was there and then was not: the caller asks again.
--
-- Nobody waits here but for another batch that is just writing the same key. Rows that have to change are locked first
-- if nobody else has them; who has them (a takeover, a settle, a handler's transaction that outlives its lease) holds
-- the event, so it is in flight.
CREATE FUNCTION oncegate.claim_2(
    clock bigint, namespaces text[], keys bytea[], owners bytea[], hashes bytea[], leases bigint[], retentions bigint[],
    binding boolean[], marking boolean[], sliding bigint[],
    sources text[], types text[], entities text[], occurrences bigint[], deliveries text[]
) RETURNS TABLE (
    place bigint, verdict text, at bigint,
    state text, owner bytea, fence bigint, lease_until bigint, attempts integer, payload_hash bytea, expires_at bigint,
    source text, type text, entity text, occurred_at bigint, delivery_id text,
    first_seen bigint, completed_at bigint, result bytea, error text, payload bytea,
    lost integer, unavailable_since bigint, handed_to text
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
               j.free AND j.rule IN ('new', 'again') AND j.marks AS marked, j.free AND j.rule = 'slide' AS slid
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
            CASE
                WHEN r.new THEN 1
                WHEN NOT r.grants OR ((r.was).state = 'P' AND (r.was).lost = 0) THEN (r.was).attempts
                ELSE (r.was).attempts + 1
            END AS attempts,
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
            CASE WHEN r.marked THEN now WHEN NOT r.new THEN (r.was).completed_at END AS completed_at,
            CASE WHEN NOT r.new THEN (r.was).result END AS result,
            CASE WHEN NOT r.new THEN (r.was).error END AS error,
            CASE WHEN NOT (r.new OR r.marked) THEN (r.was).payload END AS payload,
            CASE
                WHEN r.new OR r.marked THEN 0
                WHEN r.grants AND (r.was).state = 'P' THEN (r.was).lost + 1
                ELSE (r.was).lost
            END AS lost,
            CASE WHEN NOT (r.new OR r.marked) THEN (r.was).unavailable_since END AS unavailable_since,
            CASE WHEN NOT r.new THEN (r.was).handed_to END AS handed_to
        FROM ruled r
    ),
    written AS (
        UPDATE oncegate.claims c
        SET state = a.state, owner = a.owner, fence = a.fence, lease_until = a.lease_until, attempts = a.attempts,
            payload_hash = a.payload_hash, expires_at = a.expires_at, source = a.source, type = a.type,
            entity = a.entity, occurred_at = a.occurred_at, delivery_id = a.delivery_id, first_seen = a.first_seen,
            completed_at = a.completed_at, result = a.result, error = a.error, payload = a.payload, lost = a.lost,
            unavailable_since = a.unavailable_since, handed_to = a.handed_to
        FROM after a
        WHERE a.changed AND c.namespace = a.namespace AND c.key = a.key
    )
    SELECT a.place, a.verdict, now, a.state, a.owner, a.fence, a.lease_until, a.attempts, a.payload_hash, a.expires_at,
           a.source, a.type, a.entity, a.occurred_at, a.delivery_id,
           a.first_seen, a.completed_at, a.result, a.error, a.payload, a.lost, a.unavailable_since, a.handed_to
    FROM after a;
END $$;

-- End each claim of a batch as its ending says (C complete, R release, D bury), or renew it (P). The places that were
-- accepted, or null if all were. `spans` are the retentions, leases or delays, `bodies` the results or payloads. A
-- release that is `unavailable` gives the attempt back; `handed` are the places that completed events were published to.
CREATE FUNCTION oncegate.settle_2(
    clock bigint, endings text[], namespaces text[], keys bytea[], owners bytea[], fences bigint[], spans bigint[],
    bodies bytea[], errors text[], unstarted boolean[], unavailable boolean[], handed text[]
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
        attempts = c.attempts - (a.unstarted OR a.unavailable)::integer,
        expires_at = CASE
            WHEN a.ending IN ('C', 'D') THEN now + a.span
            WHEN a.ending = 'P' AND c.expires_at < now + a.span THEN now + a.span
            ELSE c.expires_at
        END,
        completed_at = CASE a.ending WHEN 'C' THEN now ELSE c.completed_at END,
        result = CASE a.ending WHEN 'C' THEN a.body ELSE c.result END,
        error = CASE WHEN a.ending IN ('C', 'D') OR a.error <> '' THEN a.error ELSE c.error END,
        payload = CASE a.ending WHEN 'D' THEN a.body WHEN 'C' THEN NULL ELSE c.payload END,
        lost = CASE WHEN a.ending IN ('C', 'R') AND NOT a.unstarted THEN 0 ELSE c.lost END,
        unavailable_since = CASE
            WHEN a.ending IN ('P', 'D') OR a.unstarted THEN c.unavailable_since
            WHEN a.unavailable THEN coalesce(c.unavailable_since, now)
        END,
        handed_to = a.handed
    FROM unnest(endings, namespaces, keys, owners, fences, spans, bodies, errors, unstarted, unavailable, handed)
         AS a (ending, namespace, key, owner, fence, span, body, error, unstarted, unavailable, handed)
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
CREATE FUNCTION oncegate.admit_2(
    clock bigint, namespaces text[], keys bytea[], owners bytea[], hashes bytea[], payloads bytea[], binding boolean[],
    sources text[], types text[], entities text[], occurrences bigint[], deliveries text[], behind bigint[]
) RETURNS TABLE (
    place bigint, verdict text, at bigint,
    state text, owner bytea, fence bigint, lease_until bigint, attempts integer, payload_hash bytea, expires_at bigint,
    source text, type text, entity text, occurred_at bigint, delivery_id text,
    first_seen bigint, completed_at bigint, result bytea, error text, payload bytea,
    lost integer, unavailable_since bigint, handed_to text
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
            NULL::bigint, NULL::bytea, NULL::text, NULL::bytea, NULL::integer, NULL::bigint, NULL::text;
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
                    completed_at = NULL, result = NULL, error = NULL, payload = payloads[i],
                    lost = 0, unavailable_since = NULL, handed_to = NULL
                WHERE c.namespace = namespaces[i] AND c.key = keys[i]
                RETURNING c.* INTO was;
                told := 'A';
            ELSE
                UPDATE oncegate.claims c
                SET state = 'R', owner = owners[i], lease_until = now, expires_at = NULL, payload_hash = hashes[i],
                    payload = payloads[i], lost = c.lost + (c.state = 'P')::integer,
                    attempts = c.attempts - (c.state = 'P' AND c.lost = 0)::integer
                WHERE c.namespace = namespaces[i] AND c.key = keys[i]
                RETURNING c.* INTO was;
                told := 'A';
            END IF;
        END IF;
        RETURN QUERY SELECT i::bigint, told, now, was.state, was.owner, was.fence, was.lease_until, was.attempts,
            was.payload_hash, was.expires_at, was.source, was.type, was.entity, was.occurred_at, was.delivery_id,
            was.first_seen, was.completed_at, was.result, was.error, was.payload,
            was.lost, was.unavailable_since, was.handed_to;
    END LOOP;
END $$;

-- Grant what waits in a namespace, the first let go first, to as many owners as there are. Who else is at one has it.
CREATE OR REPLACE FUNCTION oncegate.take(clock bigint, name text, owners bytea[], leases bigint[])
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
    SET state = 'P', owner = g.owner, fence = c.fence + 1, lease_until = now + g.lease,
        attempts = c.attempts + 1 - (c.state = 'P' AND c.lost = 0)::integer, lost = c.lost + (c.state = 'P')::integer
    FROM given g WHERE c.namespace = name AND c.key = g.key
    RETURNING c.*;
END $$;

-- The same in the order of each entity. A line is looked at once, however long it is. A lock on the entity keeps two who
-- take at once from each other: who has it sees, in a statement of its own, what the one before has written.
CREATE OR REPLACE FUNCTION oncegate.take_in_order(clock bigint, name text, owners bytea[], leases bigint[])
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
            attempts = c.attempts + 1 - (c.state = 'P' AND c.lost = 0)::integer,
            lost = c.lost + (c.state = 'P')::integer
        WHERE c.namespace = name AND c.key = first
        RETURNING c.*;
    END LOOP;
END $$;

-- A person sends dead letters back to work; the places where that was so.
CREATE OR REPLACE FUNCTION oncegate.redrive(clock bigint, namespaces text[], keys bytea[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
BEGIN
    RETURN QUERY
    UPDATE oncegate.claims c
    SET state = 'R', owner = '', attempts = 0, expires_at = NULL, lost = 0, unavailable_since = NULL
    FROM unnest(namespaces, keys) WITH ORDINALITY AS a (namespace, key, place)
    WHERE c.namespace = a.namespace AND c.key = a.key AND c.state = 'D' AND c.expires_at > now
    RETURNING a.place;
END $$;

-- Processes of the version before go on by these names, and by the rules of this one.
CREATE OR REPLACE FUNCTION oncegate.claim(
    clock bigint, namespaces text[], keys bytea[], owners bytea[], hashes bytea[], leases bigint[], retentions bigint[],
    binding boolean[], marking boolean[], sliding bigint[],
    sources text[], types text[], entities text[], occurrences bigint[], deliveries text[]
) RETURNS TABLE (
    place bigint, verdict text, at bigint,
    state text, owner bytea, fence bigint, lease_until bigint, attempts integer, payload_hash bytea, expires_at bigint,
    source text, type text, entity text, occurred_at bigint, delivery_id text,
    first_seen bigint, completed_at bigint, result bytea, error text, payload bytea
) LANGUAGE sql AS $$
    SELECT place, verdict, at, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
           source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
    FROM oncegate.claim_2(clock, namespaces, keys, owners, hashes, leases, retentions, binding, marking, sliding,
                          sources, types, entities, occurrences, deliveries)
$$;

CREATE OR REPLACE FUNCTION oncegate.settle(
    clock bigint, endings text[], namespaces text[], keys bytea[], owners bytea[], fences bigint[], spans bigint[],
    bodies bytea[], errors text[], unstarted boolean[]
) RETURNS bigint[]
LANGUAGE sql AS $$
    SELECT oncegate.settle_2(clock, endings, namespaces, keys, owners, fences, spans, bodies, errors, unstarted,
                             array_fill(false, ARRAY[cardinality(keys)]), '{}')
$$;

CREATE OR REPLACE FUNCTION oncegate.admit(
    clock bigint, namespaces text[], keys bytea[], owners bytea[], hashes bytea[], payloads bytea[], binding boolean[],
    sources text[], types text[], entities text[], occurrences bigint[], deliveries text[], behind bigint[]
) RETURNS TABLE (
    place bigint, verdict text, at bigint,
    state text, owner bytea, fence bigint, lease_until bigint, attempts integer, payload_hash bytea, expires_at bigint,
    source text, type text, entity text, occurred_at bigint, delivery_id text,
    first_seen bigint, completed_at bigint, result bytea, error text, payload bytea
) LANGUAGE sql AS $$
    SELECT place, verdict, at, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
           source, type, entity, occurred_at, delivery_id, first_seen, completed_at, result, error, payload
    FROM oncegate.admit_2(clock, namespaces, keys, owners, hashes, payloads, binding,
                          sources, types, entities, occurrences, deliveries, behind)
$$;

-- What there is at a place that was just connected to.
-- name: look
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       to_regclass('oncegate.meta') IS NOT NULL,
       EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('oncegate')),
       to_regnamespace('oncegate') IS NOT NULL, current_setting('default_transaction_isolation');

-- name: version
SELECT version FROM oncegate.meta;

-- name: set version
UPDATE oncegate.meta SET version = %s;

-- Only one process at a time may create or change a schema. The lock goes with its transaction.
-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('oncegate ' || %s, 0));

-- name: create
CREATE SCHEMA oncegate;

-- name: claim
SELECT * FROM oncegate.claim_2(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b);

-- name: settle
SELECT oncegate.settle_2(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b);

-- name: take
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM oncegate.take(%b, %b, %b, %b);

-- name: take in order
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM oncegate.take_in_order(%b, %b, %b, %b);

-- name: admit
SELECT * FROM oncegate.admit_2(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b);

-- name: redrive
SELECT ARRAY(SELECT oncegate.redrive(%b, %b, %b));

-- name: forget
SELECT ARRAY(SELECT oncegate.forget(%b, %b, %b, %b));

-- name: swap
SELECT ARRAY(SELECT oncegate.swap(%b, %b, %b, %b, %b, %b));

-- name: load
SELECT d.version, d.body
FROM unnest(%b, %b) WITH ORDINALITY AS a (namespace, key, place)
LEFT JOIN oncegate.documents d
    ON d.namespace = a.namespace AND d.key = a.key AND d.expires_at > (SELECT oncegate.tick(%b))
ORDER BY a.place;

-- name: kept
SELECT count(*)::bigint FROM oncegate.claims WHERE waiting IS NOT NULL AND namespace = %b;

-- name: sweep claims
SELECT oncegate.sweep(%s, 'oncegate.claims', %s, %s)::text;

-- name: sweep documents
SELECT oncegate.sweep(%s, 'oncegate.documents', %s, %s)::text;

-- For people. Each name that a null stands for is any name.
-- name: browse
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM oncegate.claims
WHERE (namespace, key) > (%(after_namespace)s, %(after_key)s)
  AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
  AND (expires_at IS NULL OR expires_at > (SELECT oncegate.tick(%(clock)s)))
ORDER BY namespace, key LIMIT %(limit)s;

-- name: browse dead
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM oncegate.claims
WHERE dead AND (namespace, key) > (%(after_namespace)s, %(after_key)s)
  AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
  AND (expires_at IS NULL OR expires_at > (SELECT oncegate.tick(%(clock)s)))
ORDER BY namespace, key LIMIT %(limit)s;

-- One key in every namespace that there is, which are found by one step along the primary key for each.
-- name: browse key
WITH RECURSIVE each(name) AS (
    (SELECT namespace FROM oncegate.claims ORDER BY namespace LIMIT 1)
    UNION ALL
    SELECT (SELECT namespace FROM oncegate.claims WHERE namespace > name ORDER BY namespace LIMIT 1)
    FROM each WHERE name IS NOT NULL
)
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM each JOIN oncegate.claims ON namespace = name
WHERE key = %(key)s AND (namespace, key) > (%(after_namespace)s, %(after_key)s)
  AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
  AND (expires_at IS NULL OR expires_at > (SELECT oncegate.tick(%(clock)s)))
ORDER BY namespace LIMIT %(limit)s;

-- Asked before a handler's transaction and not in it, where noting the time would lock it for as long as that takes.
-- name: time
SELECT oncegate.tick(%s);

-- A handler's transaction: it begins with a pledge and the lock on its claim, and ends as one that is still the same.
-- name: pledge
INSERT INTO oncegate.pledges DEFAULT VALUES RETURNING id, pg_current_xact_id()::text;

-- name: held
SELECT FROM oncegate.claims
WHERE namespace = %s AND key = %s AND state = 'P' AND owner = %s AND fence = %s
  AND (expires_at IS NULL OR expires_at > %s)
FOR UPDATE;

-- name: redeem
DELETE FROM oncegate.pledges WHERE id = %s AND pg_current_xact_id()::text = %s RETURNING id;
