-- The schema and the statements of the Postgres store. All objects are in one schema. This file uses the schema name
-- `oncegate`; arrays.py replaces it by the name from the settings.
--
--   claims                one row per key
--   ┌───────────────┬──────────┬──────────────────────────────────────────────────────────────────┐
--   │ namespace     │ text     │ ┐ primary key                                                    │
--   │ key           │ bytea    │ ┘ 16 bytes                                                       │
--   │ state         │ text     │ P in progress, R released, C completed, D dead letter            │
--   │ owner         │ bytea    │ 16 random bytes of the request that holds or held the claim      │
--   │ fence         │ bigint   │ rises with every grant                                           │
--   │ lease_until   │ bigint   │ µs; end of the lease; in state R: the event is not taken earlier │
--   │ attempts      │ integer  │ grants whose handler may have started                            │
--   │ payload_hash  │ bytea    │ hash of the event's body; empty: unknown, and matches any body   │
--   │ expires_at    │ bigint   │ µs; null while the row holds an unprocessed payload              │
--   │ source … delivery_id     │ description of the event for people; occurred_at in µs           │
--   │ first_seen    │ bigint   │ µs                                                               │
--   │ completed_at  │ bigint   │ µs                                                               │
--   │ result        │ bytea    │ the handler's result as JSON                                     │
--   │ error         │ text     │ error of the last failed attempt                                 │
--   │ payload       │ bytea    │ the event as delivered; only while it is needed                  │
--   │ waiting       │ bigint   │ lease_until if the handler has still to run the payload, or null │
--   │ dead          │ boolean  │ true for a dead letter, otherwise null                           │
--   │ lost          │ integer  │ consecutive attempts that were never settled                     │
--   │ unavailable_since        │ µs; time of the first of the consecutive `unavailable` releases  │
--   │ handed_to     │ text     │ the destination that a completed event was published to          │
--   └───────────────┴──────────┴──────────────────────────────────────────────────────────────────┘
--   documents             one row per versioned document: namespace, key → version, body, expires_at
--   meta                  one row: the version of this schema, and `high`, the highest time stored (see tick)
--   pledges               rows of running handler transactions, never committed: they prevent an early commit
--   readable              a view of claims for people: keys in hex, times as timestamps
--
-- Nearly every key goes from P to C while `waiting` and `dead` stay null, so its row is never in the indexes on these
-- columns. Indexes on `state` and `lease_until` are not used: every completion would have to update them.
--
-- Each store operation calls one function and passes the batch as arrays. The arrays have no repeated addresses and are
-- sorted by address. All functions acquire row locks in the order of the addresses, so batches cannot deadlock. Every
-- function that waits for locks therefore turns off the join methods that visit rows in another order. The remaining
-- join methods (nested loop, merge) visit rows in the order of the arrays or of the primary key. Each connection caches
-- the plans, because planning takes longer than executing.
--
-- The functions follow the rules of the table in claims.py. `oncegate.testing` compares this file and claims.py step by
-- step.
--
-- A schema change is a new section "schema N" that migrates version N-1 to version N. Processes of the previous version
-- may still run during and after the migration. A section may therefore replace a function only if the arguments of the
-- function stay the same; otherwise the new function needs a new name. If a later section replaces a definition, the
-- definition is removed from the earlier section.

-- name: schema 1
CREATE TABLE oncegate.meta (
    id      integer PRIMARY KEY CHECK (id = 1),
    version integer NOT NULL,
    high    bigint NOT NULL,
    ahead   bigint NOT NULL
);

INSERT INTO oncegate.meta VALUES (1, 1, 0, 0);

-- Fixed-width columns come first, because a bigint column after a text column needs padding.
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

-- Return the key of the first waiting event of an entity (`line`), if this event is due and no other event of the
-- entity is in progress. All events in state P are read: there are few of them, even if many events wait.
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

-- Delete records, because an operator has reset them. Returns the places of the deleted records. A place is an index in
-- the arrays of the batch, counted from 1.
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

-- Write each document whose version has not changed since it was loaded. Returns the places of the written documents.
-- Documents are written one by one. Two statements, one for the existing and one for the new documents, would break the
-- lock order, because an absent row cannot be locked.
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

-- Read up to `most` rows of a table after the position `start`, delete the expired rows among them, and return the
-- position where the next sweep has to start. The sweep reads the pages in order. An index on `expires_at` is not used:
-- every claim and every completion would have to update it. Pages may hold few rows until they are vacuumed, so the
-- function also limits the number of pages that it reads.
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

-- The transaction of a handler must commit only together with the completion of its claim. The transaction inserts a
-- pledge when it begins, and deletes the pledge just before the completion. If the handler commits earlier, the trigger
-- finds the pledge and the COMMIT fails.
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

-- `lost` counts the consecutive attempts that were never settled. A release is `unavailable` if a service that the
-- handler calls was unavailable. `unavailable_since` is the time of the first of the consecutive `unavailable`
-- releases. `handed_to` is the destination that a completed event was published to.
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

-- Return the time of the store in µs. This is the time of the server's clock, or `clock` if it is not null, but never
-- earlier than `high`.
--
-- `high` is updated every half second. If the clock is set back, or if a replica with a slower clock takes over, the
-- time of the store therefore goes back by at most half a second. Afterwards the time of the store advances by one
-- microsecond per call until the clock has reached it, so that successive grants have rising fences. During this
-- period, the progress of the clock is ignored: this progress cannot be distinguished from a correction of the clock,
-- and a correction must not end leases.
--
-- If every batch updated `high`, all batches would wait for each other. Therefore the update is skipped if the row is
-- locked. The update is also skipped in a read-only transaction, so that a server that accepts no writes can be read.
-- The column `ahead` is no longer used.
CREATE OR REPLACE FUNCTION oncegate.tick(clock bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    second CONSTANT bigint := 1000000;
    wall CONSTANT bigint := coalesce(clock, (extract(epoch FROM clock_timestamp()) * second)::bigint);
    noted bigint;
    now bigint;
BEGIN
    SELECT high INTO noted FROM oncegate.meta WHERE id = 1;
    IF wall >= noted AND wall < noted + second / 2 THEN
        RETURN wall;
    END IF;
    now := greatest(wall, noted + 1);
    IF current_setting('transaction_read_only')::boolean THEN
        RETURN now;
    END IF;
    UPDATE oncegate.meta SET high = now, ahead = 0
    WHERE id = (SELECT id FROM oncegate.meta WHERE id = 1 AND high = noted FOR UPDATE SKIP LOCKED);
    RETURN now;
END $$;

-- Settle or renew each claim of a batch. The ending says how: C complete, R release, D bury, P renew. Returns the
-- places of the accepted settlements, or null if all were accepted. `spans` are the retentions, leases or delays.
-- `bodies` are the results or payloads. `handed` are the destinations that completed events were published to. A
-- release that is `unstarted` or `unavailable` does not count as an attempt.
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

    -- Accepted: settled in this way by this call or by an earlier one (a retry). A renewed claim is still in state P.
    RETURN ARRAY(
        SELECT a.place
        FROM unnest(endings, namespaces, keys, owners, fences) WITH ORDINALITY
             AS a (ending, namespace, key, owner, fence, place)
        JOIN oncegate.claims c ON c.namespace = a.namespace AND c.key = a.key
        WHERE c.state = a.ending AND c.owner = a.owner AND c.fence = a.fence
          AND (c.expires_at IS NULL OR c.expires_at > now)
    );
END $$;

-- Grant one waiting event of a namespace to each owner. Events with the earliest `waiting` are granted first. Locked
-- rows are skipped.
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

-- Grant waiting events like `take`, but keep the order of the events of each entity. The function examines each entity
-- once, even if many events of the entity wait. An advisory lock on the entity prevents two calls from granting events
-- of one entity at the same time. The statements after the lock see what the previous holder of the lock has committed.
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

-- Make dead letters available again, because an operator has redriven them. Returns the places of the redriven records.
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

-- Processes of version 1 call the following function. It applies the rules of this version.
CREATE OR REPLACE FUNCTION oncegate.settle(
    clock bigint, endings text[], namespaces text[], keys bytea[], owners bytea[], fences bigint[], spans bigint[],
    bodies bytea[], errors text[], unstarted boolean[]
) RETURNS bigint[]
LANGUAGE sql AS $$
    SELECT oncegate.settle_2(clock, endings, namespaces, keys, owners, fences, spans, bodies, errors, unstarted,
                             array_fill(false, ARRAY[cardinality(keys)]), '{}')
$$;

-- name: schema 3
-- Claim each key of a batch. If all keys were absent, all claims are granted and the function returns one row without a
-- place. Otherwise the function returns a row for each key: the place of the key in the batch, the verdict (G granted,
-- D duplicate, F in flight, C conflict, B buried) and the record. If the record of a key was deleted while the function
-- ran, the result has no row for the key, and the caller retries the key.
--
-- The function waits only for another batch that is writing the same key. Before the function changes rows, it locks
-- them without waiting. If another session has locked a row (a takeover, a settlement, or the transaction of a handler
-- that runs longer than its lease), the verdict is in flight.
CREATE OR REPLACE FUNCTION oncegate.claim_2(
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

    now := oncegate.tick(clock); -- the INSERT may have waited
    free := ARRAY(
        SELECT a.place
        FROM unnest(namespaces, keys, retentions, sliding) WITH ORDINALITY
             AS a (namespace, key, retention, slides, place)
        JOIN oncegate.claims c ON c.namespace = a.namespace AND c.key = a.key
        WHERE c.expires_at <= now OR c.state = 'R' OR (c.state = 'P' AND c.lease_until <= now)
           OR (c.state = 'C' AND least(now + a.retention, c.first_seen + a.slides) > c.expires_at)
        FOR UPDATE OF c SKIP LOCKED
    );

    -- The rows inserted above are found here again as claims of the same owner: granted.
    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT a.*, c AS was, a.place = ANY (free) AS free,
            CASE
                WHEN c.expires_at <= now THEN 'new'
                WHEN c.owner = a.owner AND (c.state = 'C' OR (c.state = 'P' AND c.lease_until > now)) THEN 'mine'
                WHEN a.binds AND c.payload_hash NOT IN (a.hash, '') THEN 'conflict'
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

-- Admit each event of a batch: store its payload. If all keys were absent, all events are admitted and the function
-- returns one row without a place. Otherwise the function returns a row for each key: the place of the key in the
-- batch, the verdict (A admitted; see claim_2 for the other verdicts) and the record. If the record of a key was
-- deleted while the function ran, the result has no row for the key, and the caller retries the key. The function waits
-- only for another batch that is writing the same key.
CREATE OR REPLACE FUNCTION oncegate.admit_2(
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
    answer text;
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
        answer := CASE
            WHEN was.expires_at <= now THEN 'new'
            WHEN was.state = 'R' AND was.payload IS NOT NULL AND was.owner = owners[i] THEN 'A'
            WHEN was.state = 'P' AND was.payload IS NOT NULL AND was.owner = owners[i] AND was.lease_until > now THEN 'G'
            WHEN binding[i] AND was.payload_hash NOT IN (hashes[i], '') THEN 'C'
            WHEN was.state = 'P' AND was.lease_until > now AND was.payload IS NULL THEN 'F'
            WHEN was.state IN ('R', 'P') AND was.payload IS NULL THEN 'attach'
            WHEN was.state = 'D' THEN 'B'
            ELSE 'D'
        END;
        IF answer IN ('new', 'attach') THEN
            PERFORM FROM oncegate.claims c
            WHERE c.namespace = namespaces[i] AND c.key = keys[i] AND c.owner = was.owner AND c.fence = was.fence
              AND c.state = was.state AND c.lease_until = was.lease_until
              AND c.expires_at IS NOT DISTINCT FROM was.expires_at
            FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN -- locked or changed by a takeover, a settle, a renewal or a sweep
                answer := 'F';
            ELSIF answer = 'new' THEN
                UPDATE oncegate.claims c
                SET state = 'R', owner = owners[i], fence = now, lease_until = now, attempts = 0,
                    payload_hash = hashes[i], expires_at = NULL, source = sources[i], type = types[i],
                    entity = entities[i], occurred_at = occurrences[i], delivery_id = deliveries[i],
                    first_seen = now + behind[i],
                    completed_at = NULL, result = NULL, error = NULL, payload = payloads[i],
                    lost = 0, unavailable_since = NULL, handed_to = NULL
                WHERE c.namespace = namespaces[i] AND c.key = keys[i]
                RETURNING c.* INTO was;
                answer := 'A';
            ELSE
                UPDATE oncegate.claims c
                SET state = 'R', owner = owners[i], lease_until = now, expires_at = NULL, payload_hash = hashes[i],
                    payload = payloads[i], lost = c.lost + (c.state = 'P')::integer,
                    attempts = c.attempts - (c.state = 'P' AND c.lost = 0)::integer
                WHERE c.namespace = namespaces[i] AND c.key = keys[i]
                RETURNING c.* INTO was;
                answer := 'A';
            END IF;
        END IF;
        RETURN QUERY SELECT i::bigint, answer, now, was.state, was.owner, was.fence, was.lease_until, was.attempts,
            was.payload_hash, was.expires_at, was.source, was.type, was.entity, was.occurred_at, was.delivery_id,
            was.first_seen, was.completed_at, was.result, was.error, was.payload,
            was.lost, was.unavailable_since, was.handed_to;
    END LOOP;
END $$;

-- Processes of version 1 call the following two functions. They apply the rules of this version.
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

-- name: schema 4
-- Remove what identifies a person from records, because an operator has asked for it. Returns the places of the records
-- that now identify nobody. An event that loses its payload never runs, so its record becomes completed. With
-- `waiting`, waiting events lose their payload, too. Rows that another session has locked are skipped: the transaction
-- of a handler may hold its row for a long time. This function is not named after its operation `forget`, because
-- oncegate.forget of schema 1 is the operation `reset`. That function keeps its name: processes of earlier versions call
-- it while the schema is already migrated.
CREATE OR REPLACE FUNCTION oncegate.erase(
    clock bigint, namespaces text[], keys bytea[], retentions bigint[], waiting boolean[]
) RETURNS SETOF bigint
LANGUAGE plpgsql SET enable_hashjoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := oncegate.tick(clock);
    erased CONSTANT text := 'erased before it was processed';
BEGIN
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT a.place, a.namespace, a.key, a.retention, c.state = 'D' OR c.payload IS NOT NULL AS unprocessed
        FROM unnest(namespaces, keys, retentions, waiting) WITH ORDINALITY
             AS a (namespace, key, retention, waiting, place)
        JOIN oncegate.claims c ON c.namespace = a.namespace AND c.key = a.key
        WHERE (c.expires_at IS NULL OR c.expires_at > now) AND NOT (c.state = 'P' AND c.lease_until > now)
          AND (c.state = 'D' OR c.payload IS NULL OR a.waiting)
        FOR UPDATE OF c SKIP LOCKED
    )
    UPDATE oncegate.claims c
    SET state = CASE WHEN f.unprocessed THEN 'C' ELSE c.state END,
        owner = CASE WHEN f.unprocessed THEN '' ELSE c.owner END,
        lease_until = CASE WHEN f.unprocessed THEN 0 ELSE c.lease_until END,
        expires_at = CASE WHEN f.unprocessed THEN now + f.retention ELSE c.expires_at END,
        completed_at = CASE WHEN f.unprocessed THEN now ELSE c.completed_at END,
        lost = CASE WHEN f.unprocessed THEN 0 ELSE c.lost END,
        unavailable_since = CASE WHEN NOT f.unprocessed THEN c.unavailable_since END,
        error = CASE WHEN f.unprocessed OR (c.state = 'C' AND c.error = erased) THEN erased END,
        entity = NULL, delivery_id = NULL, result = NULL, payload = NULL
    FROM found f WHERE c.namespace = f.namespace AND c.key = f.key
    RETURNING f.place;
END $$;

-- Read facts about the server and the schema. Executed when a store is opened. schema.py has the names of the columns.
-- name: inspect
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       to_regclass('oncegate.meta') IS NOT NULL,
       EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('oncegate')),
       to_regnamespace('oncegate') IS NOT NULL, current_setting('default_transaction_isolation');

-- name: version
SELECT version FROM oncegate.meta;

-- name: set version
UPDATE oncegate.meta SET version = %s;

-- Only one process at a time may create or migrate a schema. The end of the transaction releases the lock.
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

-- name: reset
SELECT ARRAY(SELECT oncegate.forget(%b, %b, %b, %b));

-- name: forget
SELECT ARRAY(SELECT oncegate.erase(%b, %b, %b, %b, %b));

-- name: swap
SELECT ARRAY(SELECT oncegate.swap(%b, %b, %b, %b, %b, %b));

-- name: load
SELECT d.version, d.body
FROM unnest(%b, %b) WITH ORDINALITY AS a (namespace, key, place)
LEFT JOIN oncegate.documents d
    ON d.namespace = a.namespace AND d.key = a.key AND d.expires_at > (SELECT oncegate.tick(%b))
ORDER BY a.place;

-- name: count waiting
SELECT count(*)::bigint FROM (
    SELECT FROM oncegate.claims WHERE waiting IS NOT NULL AND namespace = %b LIMIT %s
) AS counted;

-- name: count dead letters
SELECT count(*)::bigint FROM (
    SELECT FROM oncegate.claims
    WHERE dead AND namespace = %b AND (expires_at IS NULL OR expires_at > (SELECT oncegate.tick(%s))) LIMIT %s
) AS counted;

-- name: count all dead letters
SELECT count(*)::bigint FROM (
    SELECT FROM oncegate.claims
    WHERE dead AND (expires_at IS NULL OR expires_at > (SELECT oncegate.tick(%s))) LIMIT %s
) AS counted;

-- name: sweep claims
SELECT oncegate.sweep(%s, 'oncegate.claims', %s, %s)::text;

-- name: sweep documents
SELECT oncegate.sweep(%s, 'oncegate.documents', %s, %s)::text;

-- Pages of records for people. A null namespace means all namespaces.
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

-- The records of one key in all namespaces. One index scan of the primary key finds each namespace.
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

-- Executed before the transaction of a handler begins. Inside the transaction, an update of `high` would lock the row
-- until the transaction ends.
-- name: tick
SELECT oncegate.tick(%s);

-- Fails if the server accepts no writes. If another session has locked the row, the row is skipped: the lock of that
-- session also shows that the server accepts writes.
-- name: probe
UPDATE oncegate.meta SET high = high
WHERE id = (SELECT id FROM oncegate.meta WHERE id = 1 FOR UPDATE SKIP LOCKED) RETURNING id;

-- The transaction of a handler begins with a pledge and a lock on the claim. When the handler has returned, the pledge
-- is deleted, but only if the connection is still in the transaction that made the pledge.
-- name: pledge
INSERT INTO oncegate.pledges DEFAULT VALUES RETURNING id, pg_current_xact_id()::text;

-- name: lock claim
SELECT FROM oncegate.claims
WHERE namespace = %s AND key = %s AND state = 'P' AND owner = %s AND fence = %s
  AND (expires_at IS NULL OR expires_at > %s)
FOR UPDATE;

-- name: redeem
DELETE FROM oncegate.pledges WHERE id = %s AND pg_current_xact_id()::text = %s RETURNING id;
