-- The Redis store: what all of its scripts share. Each script is this text followed by its own.
--
-- Every key starts with its bucket: the prefix and ":" on one server, the prefix and a hash tag in braces in a cluster,
-- so that all of a bucket lies in one slot and a script can work on any of it. A place is a namespace in UTF-8, escaped
-- so that it holds no zero byte, and a zero byte: places and keys joined sort as (namespace, key) does.
--
--   t                 string  the latest time judged by and what the server's clock said then, both I7
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
--   │ tail     │    │ about, result, error, payload, lease_until (of c, I7); nothing after the last of them│
--   └──────────┴────┴──────────────────────────────────────────────────────────────────────────────────────┘
--   Times and fence come after a byte each, so that a client can read four numbers of 8 bytes.
--   A text of the tail is a byte for its length and the bytes; 254 says that the length follows as I4, 255 that there
--   is none. About is MessagePack, for the client. A completed record whose tail ends after about has the result null:
--   so completing mostly writes over the first 16 bytes where they are.
--
-- KEYS[1] is the bucket's clock and tells where the bucket is; no other key is declared, since naming each would cost
-- the client more than all the rest. ARGV[1] is the batch, all requests in one text; ARGV[2] is the time of a clock
-- moved by a test, or 0. A request is a head of numbers and lengths, then the texts of these lengths; a length of NONE
-- says that there is no text. (cmsgpack would do, but knows no bytes, and MessagePack's text must be text elsewhere.)
-- Numbers here are doubles: microseconds stay below 2^53 until the year 2255. Owners and hashes stay strings.

local base = string.sub(KEYS[1], 1, -2)
local batch = ARGV[1]
local NONE = 4294967295
local NULL = 'null'
local HEAD = '>c1I7BI7BI7BI7B'
local OWNER = 34 -- where its bytes are in a record
local KEPT_ON = 60000 -- milliseconds; what has expired is absent by condition, long before Redis drops it
local MOST_ATTEMPTS = 65535
local WAITS = {p = true, r = true}

-- The text of this length at a place in the batch, and the place after it.
local function cut(at, length)
  if length == NONE then
    return nil, at
  end
  return string.sub(batch, at, at + length - 1), at + length
end

-- The store's time. It follows the server's clock and never goes back or stands still: when that clock is behind what
-- was judged by before (it was set back, or a replica took over), time goes on at half its pace until it has caught up.
local function time()
  local high, wall = 0, 0
  local seen = redis.call('GET', KEYS[1])
  if seen then
    high, wall = struct.unpack('>I7I7', seen)
  end
  local given = tonumber(ARGV[2])
  if given > 0 then
    return math.max(given, high), given
  end
  local parts = redis.call('TIME')
  local now = parts[1] * 1000000 + parts[2]
  if now > high then
    return now, now
  end
  return high + math.max(1, math.floor((now - wall) / 2)), now
end

-- The same, and nobody will judge by an earlier one.
local function tick()
  local now, wall = time()
  redis.call('SET', KEYS[1], struct.pack('>I7I7', now, wall))
  return now
end

local function text(bytes)
  if not bytes then
    return '\255'
  elseif #bytes < 254 then
    return string.char(#bytes) .. bytes
  end
  return struct.pack('>BI4', 254, #bytes) .. bytes
end

local function tail(about, result, error, payload, lease)
  if lease then
    return text(about) .. text(result) .. text(error) .. text(payload) .. text(struct.pack('>I7', lease))
  elseif payload then
    return text(about) .. text(result) .. text(error) .. text(payload)
  elseif error then
    return text(about) .. text(result) .. text(error)
  elseif result then
    return text(about) .. text(result)
  end
  return text(about)
end

local function next_text(value, at)
  local size = string.byte(value, at)
  if not size or size == 255 then
    return nil, at + 1
  elseif size == 254 then
    size, at = struct.unpack('>I4', value, at + 1)
    at = at - 1
  end
  return string.sub(value, at + 1, at + size), at + size + 1
end

-- about, result, error, payload
local function texts(value)
  local about, result, error, payload
  local at = 1
  about, at = next_text(value, at)
  result, at = next_text(value, at)
  error, at = next_text(value, at)
  payload = next_text(value, at)
  return about, result, error, payload
end

local function parse(value)
  local r = {}
  local by_256, rest, hash, owner
  r.state, r.moment, by_256, r.expires, rest, r.first, hash, r.fence, owner = struct.unpack(HEAD, value)
  r.attempts = 256 * by_256 + rest
  r.owner = string.sub(value, OWNER, OWNER + owner - 1)
  r.hash = string.sub(value, OWNER + owner, OWNER + owner + hash - 1)
  r.tail = string.sub(value, OWNER + owner + hash)
  return r
end

local function pack(r)
  local attempts = math.min(r.attempts, MOST_ATTEMPTS)
  local rest = attempts % 256
  local by_256 = (attempts - rest) / 256
  return struct.pack(HEAD, r.state, r.moment, by_256, r.expires, rest, r.first, #r.hash, r.fence, #r.owner)
    .. r.owner .. r.hash .. r.tail
end

-- Values read ahead, many with one command: a third of the cost of a command each. What is written is read anew.
local ahead = {}

local function read_ahead(keys)
  for first = 1, #keys, 1000 do
    local last = math.min(first + 999, #keys)
    for i, value in ipairs(redis.call('MGET', unpack(keys, first, last))) do
      ahead[keys[first + i - 1]] = value
    end
  end
end

local function get(key)
  local value = ahead[key]
  if value == nil then
    return redis.call('GET', key)
  end
  return value
end

-- A record that is there and has not expired, with its value; of one that has, only the state, for the lists.
local function find(where, now)
  local value = get(base .. 'r' .. where)
  if value then
    local r = parse(value)
    if r.expires == 0 or now < r.expires then
      return r, value, r.state
    end
    return nil, nil, r.state
  end
end

-- In milliseconds; a retention may be shorter than one.
local function kept_for(expires, now)
  return math.ceil((expires - now) / 1000) + KEPT_ON
end

local function write(key, value, expires, now)
  ahead[key] = nil
  if expires == 0 then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', kept_for(expires, now))
  end
end

-- Dead letters that nobody looked at leave the lists too: each new one clears out up to ten that have expired.
local function bury(where, expires, now)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', base .. 'e', '-inf', now, 'LIMIT', 0, 10)) do
    redis.call('ZREM', base .. 'e', old)
    redis.call('ZREM', base .. 'd', old)
  end
  redis.call('ZADD', base .. 'd', 0, where)
  redis.call('ZADD', base .. 'e', expires, where)
end

-- Keep the lists true when a record goes from one state (nil: it is new) to another (nil: it is gone).
local function index(where, was, is, r, now)
  if was == 'D' and is ~= 'D' then
    redis.call('ZREM', base .. 'd', where)
    redis.call('ZREM', base .. 'e', where)
  end
  if WAITS[was] or WAITS[is] then
    local stop = string.find(where, '\0', 1, true)
    local list, key = base .. 'w' .. string.sub(where, 1, stop), string.sub(where, stop + 1)
    if WAITS[is] then
      redis.call('ZADD', list, r.moment, key)
    else
      redis.call('ZREM', list, key)
    end
  end
  if is == 'D' then
    bury(where, r.expires, now)
  end
end

local function save(where, was, r, now)
  local value = pack(r)
  write(base .. 'r' .. where, value, r.expires, now)
  index(where, was, r.state, r, now)
  return value
end

local function alive(r, now)
  return (r.state == 'P' or r.state == 'p') and now < r.moment
end

-- A grant of a record that was there: the lease, the fence and the attempts go on from it.
local function grant_again(r, owner, lease, now)
  r.owner, r.fence, r.moment, r.attempts = owner, r.fence + 1, now + lease, r.attempts + 1
end

