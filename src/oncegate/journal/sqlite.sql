-- name: schema 1
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;

-- One row for each combination of these texts. Rows and counters refer to it by number.
CREATE TABLE labels (
    label INTEGER PRIMARY KEY,
    place TEXT NOT NULL,
    namespace TEXT NOT NULL,
    source TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    kind TEXT NOT NULL,
    UNIQUE (place, namespace, source, type, status, kind)
) STRICT;

-- fields is the MessagePack form of rows.Fields.
CREATE TABLE rows (id INTEGER PRIMARY KEY, label INTEGER NOT NULL, fields BLOB NOT NULL) STRICT;

-- The newest rows of a label are at the end of its range, so an insert changes one page for each label.
CREATE INDEX rows_by_label ON rows (label, id);

-- The number of events by label and minute (minutes since 1970).
CREATE TABLE counters (
    label INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    events INTEGER NOT NULL,
    PRIMARY KEY (label, minute)
) STRICT, WITHOUT ROWID;

-- The hashes of all terms of the rows from first to last, 4 bytes each. An index by term would change one page for each
-- term of each row; a block is written once, and all blocks of a million rows are searched in milliseconds.
CREATE TABLE terms (last INTEGER PRIMARY KEY, first INTEGER NOT NULL, hashes BLOB NOT NULL) STRICT;

CREATE TABLE shapes (shape BLOB PRIMARY KEY, paths BLOB NOT NULL, seen INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE payloads (id INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT
