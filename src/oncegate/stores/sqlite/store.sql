-- The SQLite store.
--
--   claims                one row per key
--   ┌───────────────┬──────────┬──────────────────────────────────────────────────────────────────┐
--   │ namespace     │ text     │ ┐ primary key                                                    │
--   │ key           │ blob     │ ┘ 16 bytes                                                       │
--   │ state         │ text     │ P in progress, R released, C completed, D dead letter            │
--   │ owner         │ blob     │ 16 random bytes of the request that holds or held the claim      │
--   │ fence         │ integer  │ rises with every grant                                           │
--   │ lease_until   │ integer  │ µs; of R, before when it is not to be taken                      │
--   │ attempts      │ integer  │ grants whose handler may have started                            │
--   │ payload_hash  │ blob     │ of the event's body                                              │
--   │ expires_at    │ integer  │ µs; null while an unprocessed payload is held                    │
--   │ source … delivery_id     │ what explains the record to a person; occurred_at in µs          │
--   │ first_seen    │ integer  │ µs                                                               │
--   │ completed_at  │ integer  │ µs                                                               │
--   │ result        │ blob     │ JSON of what the handler returned                                │
--   │ error         │ text     │ of the last attempt that failed                                  │
--   │ payload       │ blob     │ as delivered; only while it is needed                            │
--   │ lost          │ integer  │ attempts in a row that were never settled                        │
--   │ unavailable_since        │ µs; first of the releases in a row that blamed another service   │
--   │ handed_to     │ text     │ of a completed event, the place that it was published to         │
--   └───────────────┴──────────┴──────────────────────────────────────────────────────────────────┘
--   documents             one row per versioned document: namespace, key → version, body, expires_at
--   clock                 one row: the latest time that anything was written by; time never goes back past it
--
-- `pragma application_id` says that the file is ours, `pragma user_version` which schema it has. A new schema
-- is a new section below, "schema N", that turns a file of version N-1 into one of version N.

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

-- A process of the version before names the columns that it writes, so it can go on with a file of this version.
-- name: schema 2
ALTER TABLE claims ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;

ALTER TABLE claims ADD COLUMN unavailable_since INTEGER;

ALTER TABLE claims ADD COLUMN handed_to TEXT;

-- Every write transaction begins here: its time is no earlier than any other's.
-- name: tick
UPDATE clock SET high = max(high, ?) WHERE id = 1 RETURNING high;

-- name: time
SELECT high FROM clock WHERE id = 1;

-- Completed by as many marks as there are keys to find.
-- name: records
SELECT namespace, key, state, owner, fence, lease_until, attempts, payload_hash, expires_at,
       source, type, entity, occurred_at, delivery_id,
       first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to
FROM claims WHERE namespace = ? AND key IN (*);

-- A record that was absent. A row can still be there: one that has expired and was not swept yet.
-- name: insert
INSERT OR REPLACE INTO claims (
    state, owner, fence, lease_until, attempts, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id,
    first_seen, completed_at, result, error, payload, lost, unavailable_since, handed_to, namespace, key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- A first claim, which is what nearly every insert is: every value that is bound costs time.
-- name: insert claimed
INSERT OR REPLACE INTO claims (
    state, attempts, owner, fence, lease_until, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, namespace, key
) VALUES ('P', 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- A first admission, which is what all others are.
-- name: insert kept
INSERT OR REPLACE INTO claims (
    state, attempts, payload, owner, fence, lease_until, payload_hash,
    source, type, entity, occurred_at, delivery_id, first_seen, namespace, key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- A completion, which is what nearly every update is.
-- name: update completed
UPDATE claims SET
    state = 'C', lease_until = 0, payload = NULL, error = NULL, lost = 0, unavailable_since = NULL,
    expires_at = ?, completed_at = ?, result = ?
WHERE namespace = ? AND key = ?;

-- A grant or a renewal: the payload that may be there is not written again.
-- name: update held
UPDATE claims SET state = ?, owner = ?, fence = ?, lease_until = ?, attempts = ?, lost = ?
WHERE namespace = ? AND key = ?;

-- A record that was there: only what a transition can change.
-- name: update
UPDATE claims SET
    state = ?, owner = ?, fence = ?, lease_until = ?, attempts = ?, payload_hash = ?, expires_at = ?,
    completed_at = ?, result = ?, error = ?, payload = ?, lost = ?, unavailable_since = ?, handed_to = ?
WHERE namespace = ? AND key = ?;

-- name: delete
DELETE FROM claims WHERE namespace = ? AND key = ?;

-- What a dispatcher may take: it holds its payload, and nobody holds it.
-- name: waiting
SELECT key FROM claims
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND lease_until <= ?
ORDER BY lease_until LIMIT ?;

-- name: kept
SELECT count(*) FROM claims WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ?;

-- The same with their entities.
-- name: due
SELECT key, entity FROM claims
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND lease_until <= ?
ORDER BY lease_until LIMIT ?;

-- Those of them that have none.
-- name: due without a line
SELECT key FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND entity IS NULL AND lease_until <= ?
LIMIT ?;

-- The next entity that something waits for.
-- name: next line
SELECT entity FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND entity > ?
ORDER BY entity LIMIT 1;

-- What is first in the line of an entity, of those that nobody holds and of those that somebody holds or held; the
-- latter are few.
-- name: released in line
SELECT coalesce(occurred_at, first_seen), first_seen, key, lease_until FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND state = 'R' AND namespace = ? AND entity = ?
ORDER BY coalesce(occurred_at, first_seen), first_seen, key LIMIT 1;

-- name: held in line
SELECT coalesce(occurred_at, first_seen), first_seen, key, lease_until FROM claims INDEXED BY lines
WHERE payload IS NOT NULL AND state IN ('R', 'P') AND state = 'P' AND namespace = ? AND entity = ?;

-- Those of some entities that something is kept for. Completed by as many marks as there are entities to look for.
-- name: busy lines
WITH asked(entity) AS (VALUES *)
SELECT entity FROM asked WHERE EXISTS (
    SELECT 1 FROM claims INDEXED BY lines
    WHERE payload IS NOT NULL AND state IN ('R', 'P') AND namespace = ? AND claims.entity = asked.entity
);

-- name: document
SELECT version, body, expires_at FROM documents WHERE namespace = ? AND key = ?;

-- name: save document
INSERT OR REPLACE INTO documents (namespace, key, version, body, expires_at) VALUES (?, ?, ?, ?, ?);

-- Expired rows go a stretch of the key order at a time, round and round: the rows of a stretch share their
-- pages, so dropping them is cheap, and no index on the expiry has to be kept with every write.
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

-- For people.
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

-- The namespaces, one step along the primary key for each: DISTINCT would read every row.
-- name: namespaces
WITH RECURSIVE each(name) AS (
    SELECT min(namespace) FROM claims
    UNION ALL
    SELECT (SELECT min(namespace) FROM claims WHERE namespace > name) FROM each WHERE name IS NOT NULL
)
SELECT name FROM each WHERE name IS NOT NULL;
