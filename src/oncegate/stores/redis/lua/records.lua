-- Functions that parse, pack, find and write records, and functions that update the lists of records.

local MAX_ATTEMPTS = 65535
local ABOUT, RESULT, ERROR, PAYLOAD, LEASE, LOST, SINCE, HANDED = 1, 2, 3, 4, 5, 6, 7, 8 -- the texts of a tail
local WAITS = {p = true, r = true}

-- Return the text of this length at a position in the batch, and the position after the text.
local function cut(at, length)
  if length == NONE then
    return nil, at
  end
  return sub(batch, at, at + length - 1), at + length
end

-- Store the time. After this, no call uses an earlier time.
local function store_time()
  call('SET', KEYS[1], struct.pack('>I7I7', now, clock))
end

local function pack_text(text)
  if not text then
    return '\255'
  elseif #text < 254 then
    return string.char(#text) .. text
  end
  return struct.pack('>BI4', 254, #text) .. text
end

local function pack_tail(texts)
  local last, parts = HANDED, {}
  while last > ABOUT and not texts[last] do
    last = last - 1
  end
  for i = 1, last do
    parts[i] = pack_text(texts[i])
  end
  return table.concat(parts)
end

-- Return the text at a position of a tail, and the position after the text.
local function next_text(tail, at)
  local length = byte(tail, at)
  if not length or length == 255 then
    return nil, at + 1
  elseif length == 254 then
    length, at = struct.unpack('>I4', tail, at + 1)
    at = at - 1
  end
  return sub(tail, at + 1, at + length), at + length + 1
end

local function parse_tail(tail)
  local texts, at = {}, 1
  for i = ABOUT, HANDED do
    texts[i], at = next_text(tail, at)
  end
  return texts
end

local function parse(value)
  local r = {}
  local high, low, hash, owner
  r.state, r.moment, high, r.expires, low, r.first, hash, r.fence, owner = struct.unpack(HEAD, value)
  r.attempts = 256 * high + low
  r.owner = sub(value, OWNER, OWNER + owner - 1)
  r.hash = sub(value, OWNER + owner, OWNER + owner + hash - 1)
  r.tail = sub(value, OWNER + owner + hash)
  return r
end

local function pack(r)
  local attempts = math.min(r.attempts, MAX_ATTEMPTS)
  local low = attempts % 256
  local high = (attempts - low) / 256
  return struct.pack(HEAD, r.state, r.moment, high, r.expires, low, r.first, #r.hash, r.fence, #r.owner)
    .. r.owner .. r.hash .. r.tail
end

local function get(key)
  local value = ahead[key]
  if value == nil then
    return call('GET', key)
  end
  return value
end

-- Return the record at an address, the value of the record and its state. For an expired record, return only the state,
-- which `update_lists` needs.
local function find(address)
  local value = get(base .. 'r' .. address)
  if value then
    local r = parse(value)
    if r.expires == 0 or now < r.expires then
      return r, value, r.state
    end
    return nil, nil, r.state
  end
end

-- Return the milliseconds until Redis deletes a key. The result is rounded up, because a retention may be shorter than
-- a millisecond. It is counted from the server's clock, because Redis uses this clock. The server's clock may be behind
-- the store's time.
local function time_to_live(expires)
  return math.ceil((expires - clock) / 1000) + EXPIRY_GRACE
end

local function write(key, value, expires)
  ahead[key] = nil
  if expires == 0 then
    call('SET', key, value)
  else
    call('SET', key, value, 'PX', time_to_live(expires))
  end
end

-- Add a dead letter to the lists, and remove up to ten expired dead letters from the lists. If an expired dead letter
-- is never claimed again, no other call removes it.
local function list_dead_letter(address, expires)
  for _, expired in ipairs(call('ZRANGEBYSCORE', base .. 'e', '-inf', now, 'LIMIT', 0, 10)) do
    call('ZREM', base .. 'e', expired)
    call('ZREM', base .. 'd', expired)
  end
  call('ZADD', base .. 'd', 0, address)
  call('ZADD', base .. 'e', expires, address)
end

-- Update the lists when a record changes from the state `before` (nil: the record is new) to the state `after` (nil:
-- the record is deleted).
local function update_lists(address, before, after, r)
  if before == 'D' and after ~= 'D' then
    call('ZREM', base .. 'd', address)
    call('ZREM', base .. 'e', address)
  end
  if WAITS[before] or WAITS[after] then
    local stop = string.find(address, '\0', 1, true)
    local list, key = base .. 'w' .. sub(address, 1, stop), sub(address, stop + 1)
    if WAITS[after] then
      call('ZADD', list, r.moment, key)
    else
      call('ZREM', list, key)
    end
  end
  if after == 'D' then
    list_dead_letter(address, r.expires)
  end
end

local function save(address, before, r)
  local value = pack(r)
  write(base .. 'r' .. address, value, r.expires)
  update_lists(address, before, r.state, r)
  return value
end

local function has_lease(r)
  return (r.state == 'P' or r.state == 'p') and now < r.moment
end

-- Grant an existing record again. The fence and the attempts increase from their old values. A record that is still in
-- progress was never settled, so its last attempt is lost. The first of consecutive lost attempts is not counted in
-- `attempts`.
local function grant_again(r, owner, lease)
  local counts = 1
  if r.state == 'P' or r.state == 'p' then
    local texts = parse_tail(r.tail)
    local lost = texts[LOST] and struct.unpack('>I2', texts[LOST]) or 0
    counts = lost > 0 and 1 or 0
    texts[LOST] = struct.pack('>I2', math.min(lost + 1, MAX_ATTEMPTS))
    r.tail = pack_tail(texts)
  end
  r.owner, r.fence, r.moment, r.attempts = owner, r.fence + 1, now + lease, r.attempts + counts
end

