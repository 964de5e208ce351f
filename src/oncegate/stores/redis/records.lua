-- records: taken apart, put together and written, with the lists that they are in.

local MOST_ATTEMPTS = 65535
local WAITS = {p = true, r = true}

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

