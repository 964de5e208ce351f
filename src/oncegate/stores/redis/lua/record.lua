-- The Redis store: what all of its scripts share. Each script is this text, records.lua, and a text of its own. The two
-- busiest, claim and settle, answer what is usual in front of records.lua, and without a function: to set up all that
-- there are took a third of the time of a call for one event, and to set up a dozen a sixth.
--
-- Every key starts with its bucket: the prefix and ":" on one server, the prefix and a hash tag in braces in a cluster,
-- so that all of a bucket lies in one slot and a script can work on any of it. A place is a namespace in UTF-8, escaped
-- so that it holds no zero byte, and a zero byte: places and keys joined sort as (namespace, key) does.
--
--   t                 string  the latest time granted by and what the server's clock said then, both I7; the second is
--                             for processes of an earlier version, which may still be running
--   n                 set     the places that records were claimed in
--   r <place> <key>   string  one record, see below; Redis drops it a minute after it has expired
--   v <place> <key>   string  one document: version I7, expires_at I7, body
--   d                 zset    dead letters, all of score 0: <place> <key>, in the order of addresses
--   e                 zset    dead letters again, by expires_at, to find those that have expired
--   w <place>         zset    keys that wait with their payload (states p and r), by lease_until
--
-- A record is a head of fixed layout, big-endian, and a tail of texts. Times are in microseconds.
--
--   ┌──────────┬────┬──────────────────────────────────────────────────────────────────────────────────────┐
--   │ state    │ c1 │ P in progress, R released, C completed, D dead letter; p and r hold a payload too;   │
--   │          │    │ c was completed by the claim that marked it, and still has that claim's lease        │
--   │ moment   │ I7 │ lease_until; of C and c completed_at                                                 │
--   │ attempts │ I1 │ by 256; stays at 65,535 when it gets there                                           │
--   │ expires  │ I7 │ expires_at, 0 for never                                                              │
--   │ attempts │ I1 │ and the rest                                                                         │
--   │ first    │ I7 │ first_seen                                                                           │
--   │ length   │ I1 │ of hash                                                                              │
--   │ fence    │ I7 │ ┐ the proof of a claim in one piece                                                  │
--   │ owner    │ I1 │ ┘ its length, then its bytes                                                         │
--   │ hash     │    │ payload_hash                                                                         │
--   │ tail     │    │ about, result, error, payload, lease_until (of c, I7), lost (I2; stays at 65,535),   │
--   │          │    │ unavailable_since (I7), handed_to; nothing after the last that there is              │
--   └──────────┴────┴──────────────────────────────────────────────────────────────────────────────────────┘
--   Times and fence come after a byte each, so that a client can read four numbers of 8 bytes.
--   A text of the tail is a byte for its length and the bytes; 254 says that the length follows as I4, 255 that there
--   is none. About is MessagePack, for the client. A completed record whose tail ends after about has the result null:
--   so completing mostly writes over the first 16 bytes where they are. Records of layout 1 have no more than the first
--   five texts.
--
-- KEYS[1] is the bucket's clock and tells where the bucket is. KEYS[2], for claim and settle, is the record that the first
-- request is about, so that one command reads both; no other key is declared, since naming each would cost the client
-- more than all the rest. ARGV[1] is the batch, all requests in one text; ARGV[2] is the time of a clock moved by a test,
-- or 0. A request is a head of numbers and lengths, then the texts of these lengths; a length of NONE says that there is
-- no text. (cmsgpack would do, but knows no bytes, and MessagePack's text must be text elsewhere.)
-- Numbers here are doubles: microseconds stay below 2^53 until the year 2255. Owners and hashes stay strings.

local call, sub, byte = redis.call, string.sub, string.byte
local base = sub(KEYS[1], 1, -2)
local batch = ARGV[1]
local size = #batch
local NONE = 4294967295
local NULL = 'null'
local HEAD = '>c1I7BI7BI7BI7B'
local BY_256, EXPIRES, HASH, OWNER = 9, 10, 25, 34 -- where attempts, expires, length and bytes are in a record
local KEPT_ON = 60000 -- milliseconds; what has expired is absent by condition, long before Redis drops it

-- What the server's clock says, or that of a test.
local clock = tonumber(ARGV[2])
if clock == 0 then
  local parts = call('TIME')
  clock = parts[1] * 1000000 + parts[2]
end
local noted, first = unpack(call('MGET', unpack(KEYS)))

-- Values read ahead, many with one command: a third of the cost of a command each. What is written is read anew.
local ahead = {}
if KEYS[2] then
  ahead[KEYS[2]] = first
end

-- The store's time: the server's clock, but never earlier than what was noted. When that clock is behind (it was set
-- back, or a replica took over), time stands still until the clock has caught up, but for a microsecond with each call,
-- so that no two grants have one fence. Nothing that the clock does meanwhile counts as time that has passed: a
-- correction looks the same, and would end leases. That of a test may stand still altogether. Who grants something notes
-- the time; a look, a completion or a duplicate comes to the same at an earlier one.
local now = clock
if noted then
  local high = struct.unpack('>I7', noted)
  if clock <= high then
    now = ARGV[2] == '0' and high + 1 or high
  end
end
