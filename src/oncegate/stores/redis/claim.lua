-- claim: deliveries ask for the right to run.
--
-- Each request is lengths of where, owner, hash and about, lease, retention, slides, and 1 if it binds plus 2 if it
-- marks. Answered are the time, a letter for each request (N granted anew: the client knows the record; G granted, U
-- duplicate, I in flight, X conflict, B buried), and a record for each letter but N. ARGV[3] and on are the places that
-- the requests are in.

local REQUEST = '>I4I4I4I4I8I8I8B'
local now = tick()
redis.call('SADD', base .. 'n', unpack(ARGV, 3))
local letters, answer = {}, {now, ''}

local function next_request(at)
  local ask = {}
  local where, owner, hash, about, flags
  where, owner, hash, about, ask.lease, ask.retention, ask.slides, flags, at = struct.unpack(REQUEST, batch, at)
  ask.where, at = cut(at, where)
  ask.owner, at = cut(at, owner)
  ask.hash, at = cut(at, hash)
  ask.about, at = cut(at, about)
  ask.binds, ask.marks = flags % 2 == 1, flags > 1
  return ask, at
end

local function first(ask)
  local state, moment, rest = 'P', now + ask.lease, nil
  if ask.marks then
    state, moment, rest = 'c', now, tail(ask.about, nil, nil, nil, moment)
  else
    rest = text(ask.about)
  end
  local expires = now + ask.retention
  local owner, hash = ask.owner, ask.hash
  return struct.pack(HEAD, state, now, 1, now, moment, expires, #owner, owner, #hash, hash) .. rest, expires
end

-- What was granted to a marking claim is completed at once, with the time in which its effect may start.
local function mark(r, ask)
  local about, result, error = texts(r.tail)
  r.tail = tail(about, result, error, nil, r.moment)
  r.state, r.moment, r.expires = 'c', now, now + ask.retention
end

local function again(ask, r)
  local was = r.state
  grant_again(r, ask.owner, ask.lease, now)
  r.hash = ask.hash
  if WAITS[was] then
    r.state = 'p'
  else
    r.state, r.expires = 'P', now + ask.retention
  end
  if ask.marks then
    mark(r, ask)
  end
  return save(ask.where, was, r, now)
end

-- A completed record as its duplicate leaves it: only a sliding claim moves the expiry, and only to later.
local function slid(ask, r, value)
  local expires = math.min(now + ask.retention, r.first + ask.slides)
  if expires <= r.expires then
    return value
  end
  r.expires = expires
  return save(ask.where, r.state, r, now)
end

local function judge(ask, r, value)
  local state, living, own = r.state, alive(r, now), r.owner == ask.owner
  if own and (living or state == 'C' or state == 'c') then
    return 'G', value
  elseif ask.binds and r.hash ~= ask.hash then
    return 'X', value
  elseif living then
    return 'I', value
  elseif state == 'r' then
    return 'U', value
  elseif state == 'R' and own then
    return 'I', value
  elseif state == 'R' or state == 'P' or state == 'p' then
    return 'G', again(ask, r)
  elseif state == 'D' then
    return 'B', value
  end
  return 'U', slid(ask, r, value)
end

-- New events are nearly all, so a request is first written as if it were one, and looked at closer if it is not.
local function claim(ask)
  local fresh, expires = first(ask)
  local key = base .. 'r' .. ask.where
  if redis.call('SET', key, fresh, 'NX', 'PX', kept_for(expires, now)) then
    return 'N'
  end
  local r, value, was = find(ask.where, now)
  if r then
    return judge(ask, r, value)
  end
  write(key, fresh, expires, now)
  index(ask.where, was, nil, nil, now)
  return 'N'
end

local at = 1
while at <= #batch do
  local ask
  ask, at = next_request(at)
  letters[#letters + 1], answer[#answer + 1] = claim(ask)
end
answer[2] = table.concat(letters)
return answer
