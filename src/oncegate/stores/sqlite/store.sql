-- The SQLite store.
--
--   claims                one row per key
--   ┌───────────────┬──────────┬──────────────────────────────────────────────────────────────────┐
--   │ namespace     │ text     │ ┐ primary key                                                    │
--   │ key           │ blob     │ ┘ 16 bytes                                                       │
--   │ state         │ text     │ P in progress, R released, C completed, D dead letter            │
--   │ owner         │ blob     │ the request that holds or held the claim: 8 random bytes for the │
--   │               │          │ process, and 8 random bytes for the request                      │
--   │ fence         │ integer  │ increases with every grant                                       │
--   │ lease_until   │ integer  │ µs; in state R, the earliest time at which the event is taken    │
--   │ attempts      │ integer  │ number of grants whose handler may have started                  │
--   │ payload_hash  │ blob     │ hash of the event's body; empty: unknown, and matches any body   │
--   │ expires_at    │ integer  │ µs; null while an unprocessed payload is held                    │
--   │ source … delivery_id     │ summary of the event, for people; occurred_at in µs              │
--   │ first_seen    │ integer  │ µs                                                               │
--   │ completed_at  │ integer  │ µs                                                               │
--   │ result        │ blob     │ JSON of the handler's return value                               │
--   │ error         │ text     │ error of the last failed attempt                                 │
--   │ payload       │ blob     │ as delivered; null when the payload is no longer needed          │
--   │ lost          │ integer  │ number of consecutive attempts that were never settled           │
--   │ unavailable_since        │ µs; first of consecutive releases for an unavailable service     │
--   │ handed_to     │ text     │ where a completed event was published to                         │
--   └───────────────┴──────────┴──────────────────────────────────────────────────────────────────┘
--   documents             one row per versioned document: namespace, key → version, body, expires_at
--   clock                 one row: the time of the latest write transaction; later transactions have no earlier time
--
-- `pragma application_id` marks a file of Oncegate. `pragma user_version` is the schema version of the file. To change
-- the schema, add a section "schema N" that migrates a file of version N-1 to version N.
--
-- The index "lines" lists the waiting events of each entity in the order in which they happened.

-- name: schema 1
CREATE TABLE claims (
    namespace    TEXT NOT NULL,
    key          BLOB NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('P', 'R', 'C', 'D')),
    owner        BLOB NOT NULL,
    fence        INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    payload_hash BLOB NOT NULL,
    expires_at   INTEGER,
    source       TEXT NOT NULL,
    type         TEXT,
    entity       TEXT,
    occurred_at  INTEGER,
    delivery_id  TEXT,
    first_seen   INTEGER NOT NULL,
    completed_at INTEGER,
    result       BLOB,
    error        TEXT,
    payload      BLOB,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dead_letters ON claims (namespace, key) WHERE state = 'D';

CREATE INDEX waiting ON claims (namespace, lease_until) WHERE payload IS NOT NULL AND state IN ('R', 'P');

CREATE INDEX lines ON claims (namespace, entity, state, coalesce(occurred_at, first_seen), first_seen)
WHERE payload IS NOT NULL AND state IN ('R', 'P');

CREATE TABLE documents (
    namespace  TEXT NOT NULL,
    key        BLOB NOT NULL,
    version    INTEGER NOT NULL,
    body       BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE clock (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    high INTEGER NOT NULL
) STRICT;

INSERT INTO clock VALUES (1, 0);

-- Processes of version 1 name the columns that they write, so they can keep using a file of version 2.
-- name: schema 2
ALTER TABLE claims ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;

ALTER TABLE claims ADD COLUMN unavailable_since INTEGER;

ALTER TABLE claims ADD COLUMN handed_to TEXT;

-- The first statement of every write transaction. It returns the time of the transaction. This time is never earlier
-- than the time of a previous transaction.
-- name: tick
UPDATE clock SET high = max(high, ?) WHERE id = 1 RETURNING high;

-- name: time
SELECT high FROM clock WHERE id = 1;

-- The * is replaced by one ? for each key.
-- name: records
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM claims WHERE namespace = ? AND key IN (*);

-- Insert a record that was absent. REPLACE is needed because an expired row of this key may not be deleted yet.
-- name: insert
INSERT OR REPLACE INTO claims (
    state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id,
    first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to, namespace, key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- Insert a first claim. This is the most frequent insert, so it binds few values: each bound value costs time.
-- name: insert claimed
INSERT OR REPLACE INTO claims (
    state, attempts, owner, fence, lease_until, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, namespace, key
) VALUES ('P', 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- Insert a first admission. This is the second frequent insert.
-- name: insert admitted
INSERT OR REPLACE INTO claims (
    state, attempts, payload, owner, fence, lease_until, payload_hash,
    source, type, entity, occurred_at, delivery_id, first_seen, namespace, key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- Write a completion. This is the most frequent update.
-- name: update completed
UPDATE claims SET
    state = 'C', lease_until = 0, payload = NULL, error = NULL, lost = 0, unavailable_since = NULL,
    expires_at = ?, completed_at = ?, result = ?
WHERE namespace = ? AND key = ?;

-- Write a grant or a renewal. The payload is not written again.
-- name: update held
UPDATE claims SET state = ?, owner = ?, fence = ?, lease_until = ?, attempts = ?, lost = ?
WHERE namespace = ? AND key = ?;

-- Write any other change of a record. The statement writes all columns that a transition can change.
-- name: update
UPDATE claims SET
    state = ?, owner = ?, fence = ?, lease_until = ?, attempts = ?, payload_hash = ?, expires_at = ?,
    completed_at = ?, result = ?, error = ?, payload = ?, lost = ?, unavailable_since = ?, handed_to = ?
WHERE namespace = ? AND key = ?;

-- name: delete
DELETE FROM claims WHERE namespace = ? AND key = ?;

-- Events that a dispatcher may take. They have a payload and no live lease.
-- name: waiting
SELECT key FROM claims
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND lease_until <= ?
ORDER BY lease_until LIMIT ?;

-- Claims with a payload that one process holds. The first 8 bytes of an owner identify the process.
-- name: held by
SELECT namespace, key FROM claims INDEXED BY waiting
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND state = 'P' AND lease_until > ? AND substr(owner, 1, 8) = ?;

-- name: count payloads
SELECT count(*) FROM claims WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ?;

-- The statement above reads all records of the namespace. To count few events, the index is faster.
-- name: count payloads up to
SELECT count(*) FROM (
    SELECT 1 FROM claims INDEXED BY waiting
    WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? LIMIT ?
);

-- The same events as "waiting", with their entities.
-- name: due
SELECT key, entity FROM claims
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND lease_until <= ?
ORDER BY lease_until LIMIT ?;

-- The events of "due" that have no entity.
-- name: due without entity
SELECT key FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND entity IS NULL AND lease_until <= ?
LIMIT ?;

-- The next entity that has waiting events.
-- name: next entity
SELECT entity FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND entity > ?
ORDER BY entity LIMIT 1;

-- Of the events of an entity that no worker has taken, the event that happened first.
-- name: released of entity
SELECT coalesce(occurred_at, first_seen), first_seen, key, lease_until FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND state = 'R' AND namespace = ? AND entity = ?
ORDER BY coalesce(occurred_at, first_seen), first_seen, key LIMIT 1;

-- All events of an entity that a worker has taken. The lease can be live or ended. There are few such events.
-- name: held of entity
SELECT coalesce(occurred_at, first_seen), first_seen, key, lease_until FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND state = 'P' AND namespace = ? AND entity = ?;

-- The entities in a list that have a record with a payload. The * is replaced by one (?) for each entity.
-- name: busy entities
WITH wanted(entity) AS (VALUES *)
SELECT entity FROM wanted WHERE EXISTS (
    SELECT 1 FROM claims INDEXED BY lines
    WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND claims.entity = wanted.entity
);

-- name: document
SELECT version, body, expires_at FROM documents WHERE namespace = ? AND key = ?;

-- name: save document
INSERT OR REPLACE INTO documents (namespace, key, version, body, expires_at) VALUES (?, ?, ?, ?, ?);

-- Expired rows are deleted in stretches. A stretch is a range of consecutive keys. The stretches go from the first key
-- to the last key, and then start again at the first key. The rows of a stretch are on the same pages, so deleting them
-- is cheap. An index on expires_at was rejected: every write would have to update it.
-- name: claims stretch
SELECT namespace, key FROM claims WHERE (namespace, key) > (?, ?) ORDER BY namespace, key LIMIT 1 OFFSET ?;

-- name: claims sweep
DELETE FROM claims WHERE (namespace, key) > (?, ?) AND (namespace, key) <= (?, ?) AND expires_at <= ?;

-- name: claims sweep rest
DELETE FROM claims WHERE (namespace, key) > (?, ?) AND expires_at <= ?;

-- name: documents stretch
SELECT namespace, key FROM documents WHERE (namespace, key) > (?, ?) ORDER BY namespace, key LIMIT 1 OFFSET ?;

-- name: documents sweep
DELETE FROM documents WHERE (namespace, key) > (?, ?) AND (namespace, key) <= (?, ?) AND expires_at <= ?;

-- name: documents sweep rest
DELETE FROM documents WHERE (namespace, key) > (?, ?) AND expires_at <= ?;

-- One page of a list for operators.
-- name: browse
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM claims
WHERE (namespace, key) > (:after_namespace, :after_key)
  AND (:namespace IS NULL OR namespace = :namespace)
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY namespace, key LIMIT :limit;

-- name: browse dead
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM claims
WHERE state = 'D' AND (namespace, key) > (:after_namespace, :after_key)
  AND (:namespace IS NULL OR namespace = :namespace)
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY namespace, key LIMIT :limit;

-- One page of dead letters without their payloads: the number of rows, the last key, and the number of rows that have
-- not expired.
-- name: count dead letters
SELECT count(*), max(key), count(*) FILTER (WHERE expires_at IS NULL OR expires_at > :now) FROM (
    SELECT key, expires_at FROM claims INDEXED BY dead_letters
    WHERE state = 'D' AND namespace = :namespace AND key > :after ORDER BY key LIMIT :limit
);

-- All namespaces. The query makes one search in the primary key for each namespace. DISTINCT would read every row.
-- name: namespaces
WITH RECURSIVE each(name) AS (
    SELECT min(namespace) FROM claims
    UNION ALL
    SELECT (SELECT min(namespace) FROM claims WHERE namespace > name) FROM each WHERE name IS NOT NULL
)
SELECT name FROM each WHERE name IS NOT NULL;
