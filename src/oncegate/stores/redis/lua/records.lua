-- records: taken apart, put together and written, with the lists that they are in.

local MOST_ATTEMPTS = 65535
local ABOUT, RESULT, ERROR, PAYLOAD, LEASE, LOST, SINCE, HANDED = 1, 2, 3, 4, 5, 6, 7, 8 -- the texts of a tail
local WAITS = {p = true, r = true}

-- The text of this length at a place in the batch, and the place after it.
local function cut(at, length)
  if length == NONE then
    return nil, at
  end
  return sub(batch, at, at + length - 1), at + length
end

-- From now on nobody judges by an earlier time.
local function note()
  call('SET', KEYS[1], struct.pack('>I7I7', now, clock))
end

local function text(bytes)
  if not bytes then
    return '\255'
  elseif #bytes < 254 then
    return string.char(#bytes) .. bytes
  end
  return struct.pack('>BI4', 254, #bytes) .. bytes
end

local function tail(texts)
  local last, parts = HANDED, {}
  while last > ABOUT and not texts[last] do
    last = last - 1
  end
  for i = 1, last do
    parts[i] = text(texts[i])
  end
  return table.concat(parts)
end

local function next_text(value, at)
  local size = byte(value, at)
  if not size or size == 255 then
    return nil, at + 1
  elseif size == 254 then
    size, at = struct.unpack('>I4', value, at + 1)
    at = at - 1
  end
  return sub(value, at + 1, at + size), at + size + 1
end

local function texts(value)
  local found, at = {}, 1
  for i = ABOUT, HANDED do
    found[i], at = next_text(value, at)
  end
  return found
end

local function parse(value)
  local r = {}
  local by_256, rest, hash, owner
  r.state, r.moment, by_256, r.expires, rest, r.first, hash, r.fence, owner = struct.unpack(HEAD, value)
  r.attempts = 256 * by_256 + rest
  r.owner = sub(value, OWNER, OWNER + owner - 1)
  r.hash = sub(value, OWNER + owner, OWNER + owner + hash - 1)
  r.tail = sub(value, OWNER + owner + hash)
  return r
end

local function pack(r)
  local attempts = math.min(r.attempts, MOST_ATTEMPTS)
  local rest = attempts % 256
  local by_256 = (attempts - rest) / 256
  return struct.pack(HEAD, r.state, r.moment, by_256, r.expires, rest, r.first, #r.hash, r.fence, #r.owner)
    .. r.owner .. r.hash .. r.tail
end

local function get(key)
  local value = ahead[key]
  if value == nil then
    return call('GET', key)
  end
  return value
end

-- A record that is there and has not expired, with its value; of one that has, only the state, for the lists.
local function find(where)
  local value = get(base .. 'r' .. where)
  if value then
    local r = parse(value)
    if r.expires == 0 or now < r.expires then
      return r, value, r.state
    end
    return nil, nil, r.state
  end
end

-- In milliseconds; a retention may be shorter than one. Redis counts by the server's clock, which may be behind.
local function kept_for(expires)
  return math.ceil((expires - clock) / 1000) + KEPT_ON
end

local function write(key, value, expires)
  ahead[key] = nil
  if expires == 0 then
    call('SET', key, value)
  else
    call('SET', key, value, 'PX', kept_for(expires))
  end
end

-- Dead letters that nobody looked at leave the lists too: each new one clears out up to ten that have expired.
local function bury(where, expires)
  for _, old in ipairs(call('ZRANGEBYSCORE', base .. 'e', '-inf', now, 'LIMIT', 0, 10)) do
    call('ZREM', base .. 'e', old)
    call('ZREM', base .. 'd', old)
  end
  call('ZADD', base .. 'd', 0, where)
  call('ZADD', base .. 'e', expires, where)
end

-- Keep the lists true when a record goes from one state (nil: it is new) to another (nil: it is gone).
local function index(where, was, is, r)
  if was == 'D' and is ~= 'D' then
    call('ZREM', base .. 'd', where)
    call('ZREM', base .. 'e', where)
  end
  if WAITS[was] or WAITS[is] then
    local stop = string.find(where, '\0', 1, true)
    local list, key = base .. 'w' .. sub(where, 1, stop), sub(where, stop + 1)
    if WAITS[is] then
      call('ZADD', list, r.moment, key)
    else
      call('ZREM', list, key)
    end
  end
  if is == 'D' then
    bury(where, r.expires)
  end
end

local function save(where, was, r)
  local value = pack(r)
  write(base .. 'r' .. where, value, r.expires)
  index(where, was, r.state, r)
  return value
end

local function alive(r)
  return (r.state == 'P' or r.state == 'p') and now < r.moment
end

-- A grant of a record that was there: the lease, the fence and the attempts go on from it. What was in progress was never
-- settled: it is lost, and does not count as an attempt if it is the first of such a row.
local function grant_again(r, owner, lease)
  local counts = 1
  if r.state == 'P' or r.state == 'p' then
    local t = texts(r.tail)
    local lost = t[LOST] and struct.unpack('>I2', t[LOST]) or 0
    counts = lost > 0 and 1 or 0
    t[LOST] = struct.pack('>I2', math.min(lost + 1, MOST_ATTEMPTS))
    r.tail = tail(t)
  end
  r.owner, r.fence, r.moment, r.attempts = owner, r.fence + 1, now + lease, r.attempts + counts
end

