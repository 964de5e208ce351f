-- The first part of every script of the Redis store: keys, record layout, and time.
--
-- Each script consists of this file, records.lua and one or two more files. The two most frequent scripts are claim and
-- settle. Their first file comes before records.lua and handles the usual requests without functions, because a
-- script defines its functions again at each call. To define all functions took a third of the time of a call for one
-- event, and to define a dozen functions took a sixth.
--
-- KEYS
--
-- Every key starts with the prefix of its bucket. On a single server, this is the prefix of the store and ":". In a
-- cluster, this is the prefix of the store and a hash tag in braces. So all keys of a bucket are in one slot, and a
-- script can use all keys of its bucket. <namespace> is a namespace in UTF-8 with escaped zero bytes, followed by a
-- zero byte. An address is <namespace> <key>. Addresses sort like (namespace, key).
--
--   t                     string  the latest time at which something was granted, and the server's clock at that time,
--                                 both I7; only processes of an earlier version, which may still run, read the clock
--   n                     set     the namespaces that have claimed records
--   r <namespace> <key>   string  a record, see below; Redis deletes it one minute after its expiry
--   v <namespace> <key>   string  a document: version I7, expires_at I7, body
--   d                     zset    the addresses of the dead letters; all have score 0, so they sort by address
--   e                     zset    the addresses of the dead letters; the score is expires_at, to find expired ones
--   w <namespace>         zset    the keys of the records with a payload (states p and r); the score is lease_until
--
-- RECORDS
--
-- A record has a head of fixed layout and a tail of texts. Numbers are big-endian. Times are in microseconds.
--
--   ┌──────────┬────┬──────────────────────────────────────────────────────────────────────────────────────┐
--   │ state    │ c1 │ P in progress, R released, C completed, D dead letter; p and r are P and R with a    │
--   │          │    │ payload; c is C, completed by its claim (mark_first), and keeps the claim's lease    │
--   │ moment   │ I7 │ lease_until; in states C and c, completed_at                                         │
--   │ attempts │ I1 │ high byte; the maximum of attempts is 65,535                                         │
--   │ expires  │ I7 │ expires_at; 0 if the record does not expire                                          │
--   │ attempts │ I1 │ low byte                                                                             │
--   │ first    │ I7 │ first_seen                                                                           │
--   │ length   │ I1 │ the length of hash                                                                   │
--   │ fence    │ I7 │ ┐ fence and owner together are the proof of a claim                                  │
--   │ owner    │ I1 │ ┘ the length of owner, then the bytes of owner                                       │
--   │ hash     │    │ payload_hash                                                                         │
--   │ tail     │    │ about, result, error, payload, lease_until (for c, I7), lost (I2, at most 65,535),   │
--   │          │    │ unavailable_since (I7), handed_to; absent texts at the end are not stored            │
--   └──────────┴────┴──────────────────────────────────────────────────────────────────────────────────────┘
--   One byte precedes each time and the fence, so a client can read the head as four numbers of 8 bytes.
--   Each text of the tail begins with one byte for its length; the bytes of the text follow. If this byte is 254, the
--   length follows as I4. If this byte is 255, the text is absent. About is in MessagePack, which only clients decode.
--   If the tail of a completed record ends after about, its result is null. So a completion usually overwrites only the
--   first 16 bytes of a record. Records of layout 1 have only the first five texts.
--
-- ARGUMENTS
--
-- KEYS[1] is key t of the bucket. The script takes the prefix of the bucket from KEYS[1]. For claim and settle, KEYS[2]
-- is the record of the first request, so that one command reads both keys. No other key is declared: to name every key
-- would take the client longer than the rest of its work for a call.
--
-- ARGV[1] is the batch: all requests in one string. ARGV[2] is the time of a test's clock, or 0. A request has a head
-- of numbers and lengths. Texts of these lengths follow the head. Length NONE means that the text is absent. (cmsgpack
-- was rejected: it does not distinguish bytes from text, and other MessagePack libraries require valid text.)
--
-- Numbers in Lua are doubles, so times in microseconds are exact below 2^53, until the year 2255. Owners and hashes are
-- strings.

local call, sub, byte = redis.call, string.sub, string.byte
local base = sub(KEYS[1], 1, -2)
local batch = ARGV[1]
local size = #batch
local NONE = 4294967295
local NULL = 'null'
local HEAD = '>c1I7BI7BI7BI7B'
-- Positions in a record of the high byte of attempts, of expires, of the length of hash, and of the bytes of owner.
local ATTEMPTS_HIGH, EXPIRES, HASH, OWNER = 9, 10, 25, 34
-- Redis deletes a record this many milliseconds after its expiry. Scripts treat an expired record as absent.
local EXPIRY_GRACE = 60000

-- The time of the server's clock, or of a test's clock.
local clock = tonumber(ARGV[2])
if clock == 0 then
  local parts = call('TIME')
  clock = parts[1] * 1000000 + parts[2]
end
local stored_time, first = unpack(call('MGET', unpack(KEYS)))

-- Values that were read in advance, by key. One command reads many values, which costs a third of the time of one
-- command for each value. A write removes its key from this table, so that the value is read again.
local ahead = {}
if KEYS[2] then
  ahead[KEYS[2]] = first
end

-- The store's time is the time of the server's clock, but never earlier than the stored time. The server's clock is
-- behind the stored time if the clock was set back, or if a replica became primary. While the clock is behind, the
-- store's time advances by one microsecond with each call that stores the time, so that no two grants have the same
-- fence. The progress of the clock does not count as elapsed time while the clock is behind: a correction of the clock
-- looks the same as progress, and would end leases. A test's clock may stand still: the store's time then does not
-- advance.
--
-- Scripts that grant something store the time. A lookup, a completion or a duplicate has the same result at an
-- earlier time, so it need not store the time.
local now = clock
if stored_time then
  local latest = struct.unpack('>I7', stored_time)
  if clock <= latest then
    now = ARGV[2] == '0' and latest + 1 or latest
  end
end
