-- The tables of a journal. This file uses the schema name `oncegate_journal`; postgres.py replaces it.
--
--   rows, payloads  partitioned by day; a day with too many rows is split, so that its oldest part can be dropped
--   partitions      the ranges of the partitions: first is included, next is not
--   terms           the hashes of all terms of the rows from first to last, 4 bytes each
--   counters        the number of events by label and minute (minutes since 1970)
--   batches         the number of the last batch of each writer, and the time of it in seconds since 1970
--   meta            one row; `last` is the highest id. A writer locks this row, so ids rise in the order of the commits.

-- name: create
CREATE SCHEMA IF NOT EXISTS oncegate_journal;

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('oncegate_journal', 0));

-- name: exists
SELECT to_regnamespace('oncegate_journal') IS NOT NULL, to_regclass('oncegate_journal.meta') IS NOT NULL,
       EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('oncegate_journal'));

-- name: schema 1
CREATE TABLE oncegate_journal.meta (secret bytea NOT NULL, last bigint NOT NULL);
CREATE TABLE oncegate_journal.labels (
    label serial PRIMARY KEY, place text NOT NULL, namespace text NOT NULL, source text NOT NULL, type text NOT NULL,
    status text NOT NULL, kind text NOT NULL, UNIQUE (place, namespace, source, type, status, kind)
);
CREATE TABLE oncegate_journal.rows (id bigint NOT NULL, label integer NOT NULL, fields bytea NOT NULL, PRIMARY KEY (id))
    PARTITION BY RANGE (id);
CREATE INDEX ON oncegate_journal.rows (label, id);
CREATE TABLE oncegate_journal.payloads (id bigint NOT NULL, payload bytea NOT NULL, PRIMARY KEY (id))
    PARTITION BY RANGE (id);
CREATE TABLE oncegate_journal.partitions (first bigint PRIMARY KEY, next bigint NOT NULL);
CREATE TABLE oncegate_journal.terms (last bigint PRIMARY KEY, first bigint NOT NULL, hashes bytea NOT NULL);
ALTER TABLE oncegate_journal.terms ALTER COLUMN hashes SET STORAGE EXTERNAL;
CREATE TABLE oncegate_journal.counters (
    label integer NOT NULL, minute bigint NOT NULL, events bigint NOT NULL, PRIMARY KEY (label, minute)
);
CREATE TABLE oncegate_journal.shapes (shape bytea PRIMARY KEY, paths bytea NOT NULL, seen bigint NOT NULL);
CREATE TABLE oncegate_journal.batches (writer bytea PRIMARY KEY, number bigint NOT NULL, seen bigint NOT NULL);

-- name: set secret
INSERT INTO oncegate_journal.meta VALUES (%s, 0);

-- name: secret
SELECT secret FROM oncegate_journal.meta;

-- name: last
SELECT last, secret FROM oncegate_journal.meta FOR UPDATE;

-- name: set last
UPDATE oncegate_journal.meta SET last = %s;

-- name: partitions
SELECT first, next FROM oncegate_journal.partitions ORDER BY first;

-- name: sizes
SELECT first, next, pg_total_relation_size(('oncegate_journal.rows_' || first)::regclass)
    + pg_total_relation_size(('oncegate_journal.payloads_' || first)::regclass)
FROM oncegate_journal.partitions ORDER BY first;

-- name: other sizes
SELECT coalesce(sum(pg_total_relation_size(name::regclass)), 0)::bigint
FROM unnest(ARRAY['oncegate_journal.terms', 'oncegate_journal.counters', 'oncegate_journal.shapes']) AS name;

-- name: add partition
INSERT INTO oncegate_journal.partitions VALUES (%s, %s);

-- name: cut partition
UPDATE oncegate_journal.partitions SET next = %s WHERE first = %s;

-- name: drop partition
DELETE FROM oncegate_journal.partitions WHERE first = %s;

-- name: add label
INSERT INTO oncegate_journal.labels (place, namespace, source, type, status, kind) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING;

-- name: labels
SELECT label, place, namespace, source, type, status, kind FROM oncegate_journal.labels;

-- name: append
INSERT INTO oncegate_journal.rows SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]);

-- name: append payloads
INSERT INTO oncegate_journal.payloads SELECT * FROM unnest(%s::bigint[], %s::bytea[]);

-- name: append terms
INSERT INTO oncegate_journal.terms VALUES (%s, %s, %s);

-- name: count
INSERT INTO oncegate_journal.counters SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (label, minute) DO UPDATE SET events = oncegate_journal.counters.events + excluded.events;

-- Writes no row if the batch was written before.
-- name: add batch
INSERT INTO oncegate_journal.batches VALUES (%s, %s, %s)
ON CONFLICT (writer) DO UPDATE SET number = excluded.number, seen = excluded.seen
WHERE oncegate_journal.batches.number < excluded.number;

-- name: delete batches
DELETE FROM oncegate_journal.batches WHERE seen < %s;

-- name: add shape
INSERT INTO oncegate_journal.shapes VALUES (%s, %s, %s) ON CONFLICT (shape) DO UPDATE SET seen = excluded.seen;

-- name: rows
SELECT id, label, fields FROM oncegate_journal.rows WHERE id > %s AND id < %s AND label <> ALL(%s::bigint[])
ORDER BY id DESC LIMIT %s;

-- name: rows by label
SELECT found.* FROM unnest(%s::bigint[]) AS wanted CROSS JOIN LATERAL (
    SELECT id, label, fields FROM oncegate_journal.rows
    WHERE label = wanted AND id > %s AND id < %s ORDER BY id DESC LIMIT %s
) AS found ORDER BY id DESC LIMIT %s;

-- name: blocks
SELECT first, last FROM oncegate_journal.terms
WHERE first < %s AND last > %s AND (position(%s IN hashes) > 0 OR position(%s IN hashes) > 0) ORDER BY last DESC;

-- name: totals
SELECT minute / %s * %s, label, sum(events)::bigint FROM oncegate_journal.counters
WHERE label = ANY(%s::bigint[]) AND minute BETWEEN %s AND %s GROUP BY 1, 2;

-- name: payload
SELECT payload FROM oncegate_journal.payloads WHERE id = %s;

-- name: shape
SELECT paths FROM oncegate_journal.shapes WHERE shape = %s;

-- name: terms
SELECT first, last, hashes FROM oncegate_journal.terms WHERE last < %s ORDER BY last DESC LIMIT %s;

-- Two erasures of one block run one after the other, so that none writes the terms that the other has erased.
-- name: lock terms
SELECT FROM oncegate_journal.terms WHERE last = %s FOR UPDATE;

-- name: rows of block
SELECT id, label, fields FROM oncegate_journal.rows WHERE id BETWEEN %s AND %s;

-- name: set terms
UPDATE oncegate_journal.terms SET hashes = %s WHERE last = %s;

-- name: erase rows
DELETE FROM oncegate_journal.rows WHERE id = ANY(%s::bigint[]);

-- name: erase payloads
DELETE FROM oncegate_journal.payloads WHERE id = ANY(%s::bigint[]);

-- name: delete shape
DELETE FROM oncegate_journal.shapes WHERE shape = %s;

-- name: delete rows
DELETE FROM oncegate_journal.rows WHERE id IN (
    SELECT id FROM oncegate_journal.rows WHERE id < %s ORDER BY id LIMIT %s
);

-- name: delete payloads
DELETE FROM oncegate_journal.payloads WHERE id IN (
    SELECT id FROM oncegate_journal.payloads WHERE id < %s ORDER BY id LIMIT %s
);

-- name: delete terms
DELETE FROM oncegate_journal.terms WHERE last < %s;

-- name: delete counts
DELETE FROM oncegate_journal.counters WHERE minute < %s;

-- name: delete shapes
DELETE FROM oncegate_journal.shapes WHERE seen < %s OR shape IN (
    SELECT shape FROM oncegate_journal.shapes ORDER BY seen DESC OFFSET %s
);
