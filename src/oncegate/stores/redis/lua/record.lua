-- The first part of every script of the Redis store: keys, record layout, and time.
--
-- A script is this file, records.lua and a file of its own. The two busiest scripts, claim and settle, handle the usual
-- requests before records.lua, without functions: to define all functions took a third of the time of a call for one
-- event, and to define a dozen took a sixth.
--
-- KEYS
--
-- Every key starts with the prefix of its bucket: the prefix of the store and ":" on a single server, the prefix of the
-- store and a hash tag in braces in a cluster. So all keys of a bucket are in one slot, and a script can use any of
-- them. <namespace> is a namespace in UTF-8, escaped so that it has no zero byte, followed by a zero byte. An address
-- is <namespace> <key>; addresses sort like (namespace, key).
--
--   t                     string  the latest time at which something was granted, and the server's clock at that time,
--                                 both I7; the second is for processes of an earlier version that may still run
--   n                     set     the namespaces that have claimed records
--   r <namespace> <key>   string  a record, see below; Redis deletes it a minute after it has expired
--   v <namespace> <key>   string  a document: version I7, expires_at I7, body
--   d                     zset    the addresses of the dead letters, all with score 0, so that they sort by address
--   e                     zset    the addresses of the dead letters by expires_at, to find the expired ones
--   w <namespace>         zset    the keys of the events that wait with their payload (states p and r), by lease_until
--
-- RECORDS
--
-- A record is a head of fixed layout, big-endian, and a tail of texts. Times are in microseconds.
--
--   ┌──────────┬────┬──────────────────────────────────────────────────────────────────────────────────────┐
--   │ state    │ c1 │ P in progress, R released, C completed, D dead letter; p and r are P and R with a    │
--   │          │    │ payload; c was completed by its own claim (mark_first) and has the lease of the claim│
--   │ moment   │ I7 │ lease_until; for C and c completed_at                                                │
--   │ attempts │ I1 │ high byte; attempts stop at 65,535                                                   │
--   │ expires  │ I7 │ expires_at; 0 for never                                                              │
--   │ attempts │ I1 │ low byte                                                                             │
--   │ first    │ I7 │ first_seen                                                                           │
--   │ length   │ I1 │ of hash                                                                              │
--   │ fence    │ I7 │ ┐ the proof of a claim, in one piece                                                 │
--   │ owner    │ I1 │ ┘ its length, then its bytes                                                         │
--   │ hash     │    │ payload_hash                                                                         │
--   │ tail     │    │ about, result, error, payload, lease_until (of c, I7), lost (I2; stops at 65,535),   │
--   │          │    │ unavailable_since (I7), handed_to; the tail ends after the last text that is present │
--   └──────────┴────┴──────────────────────────────────────────────────────────────────────────────────────┘
--   One byte precedes each time and the fence, so that a client can read four numbers of 8 bytes.
--   A text of the tail is its length in one byte, then its bytes. Length 254 means that the length follows as I4, 255
--   that the text is absent. About is MessagePack, which only clients read. A completed record whose tail ends after
--   about has the result null, so a completion usually overwrites only the first 16 bytes. Records of layout 1 have
--   only the first five texts.
--
-- ARGUMENTS
--
-- KEYS[1] is key t of the bucket, which also gives the prefix. KEYS[2], for claim and settle, is the record of the
-- first request, so that one command reads both. No other key is declared: to name each key would cost the client more
-- than everything else. ARGV[1] is the batch: all requests in one string. ARGV[2] is the time of a test's clock, or 0.
-- A request is a head of numbers and lengths, then texts of these lengths; length NONE means that the text is absent.
-- (cmsgpack was rejected: it does not distinguish bytes from text, and other MessagePack libraries require valid text.)
-- Numbers are doubles: microseconds are exact below 2^53, until the year 2255. Owners and hashes are strings.

local call, sub, byte = redis.call, string.sub, string.byte
local base = sub(KEYS[1], 1, -2)
local batch = ARGV[1]
local size = #batch
local NONE = 4294967295
local NULL = 'null'
local HEAD = '>c1I7BI7BI7BI7B'
-- Positions in a record: the high byte of attempts, expires, the length of hash, and the bytes of owner.
local ATTEMPTS_HIGH, EXPIRES, HASH, OWNER = 9, 10, 25, 34
local EXPIRY_GRACE = 60000 -- milliseconds until Redis deletes an expired record; scripts treat it as absent before

-- The server's clock, or that of a test.
local clock = tonumber(ARGV[2])
if clock == 0 then
  local parts = call('TIME')
  clock = parts[1] * 1000000 + parts[2]
end
local stored_time, first = unpack(call('MGET', unpack(KEYS)))

-- Values that were read ahead, many with one command: a third of the cost of one command for each. A write removes its
-- key from here, so that the value is read again.
local ahead = {}
if KEYS[2] then
  ahead[KEYS[2]] = first
end

-- The store's time: the server's clock, but never earlier than the stored time. While the clock is behind (it was set
-- back, or a replica became primary), the time advances by one microsecond with each call, so that no two grants have
-- the same fence. Progress of the clock meanwhile does not count as elapsed time: a correction of the clock looks the
-- same, and would end leases. The clock of a test may stand still. Only scripts that grant something store the time; a
-- lookup, a completion or a duplicate has the same result at an earlier time.
local now = clock
if stored_time then
  local latest = struct.unpack('>I7', stored_time)
  if clock <= latest then
    now = ARGV[2] == '0' and latest + 1 or latest
  end
end
