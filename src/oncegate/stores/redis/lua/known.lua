-- known: claims on records that are there, or were, and are not plainly done: those that claim.lua has put off.

-- What was granted to a marking claim is completed at once, with the time in which its effect may start.
local function mark(r, retention)
  local t = texts(r.tail)
  t[PAYLOAD], t[LEASE], t[LOST], t[SINCE] = nil, struct.pack('>I7', r.moment), nil, nil
  r.tail = tail(t)
  r.state, r.moment, r.expires = 'c', now, now + retention
end

local function again(ask, r)
  local was = r.state
  grant_again(r, ask.owner, ask.lease)
  r.hash = ask.hash
  if WAITS[was] then
    r.state = 'p'
  else
    r.state, r.expires = 'P', now + ask.retention
  end
  if ask.marks then
    mark(r, ask.retention)
  end
  return save(ask.where, was, r)
end

-- A completed record as its duplicate leaves it: only a sliding claim moves the expiry, and only to later.
local function slid(ask, r, value)
  local expires = math.min(now + ask.retention, r.first + ask.slides)
  if expires <= r.expires then
    return value
  end
  r.expires = expires
  return save(ask.where, r.state, r)
end

local function judge(ask, r, value)
  local state, living, own = r.state, alive(r), r.owner == ask.owner
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

local function anew(ask, was)
  local r = {state = 'P', moment = now + ask.lease, attempts = 1, expires = now + ask.retention, first = now}
  r.fence, r.owner, r.hash, r.tail = now, ask.owner, ask.hash, ask.about
  if ask.marks then
    mark(r, ask.retention)
  end
  save(ask.where, was, r)
  return 'N'
end

-- The request that starts here.
local function claim_known(start)
  local ask = {}
  local where, owner, hash, about, flags, at
  where, owner, hash, about, ask.lease, ask.retention, ask.slides, flags, at = struct.unpack(REQUEST, batch, start)
  ask.binds, ask.marks = flags % 2 == 1, flags >= MARKS
  ask.where, at = cut(at, where)
  ask.owner, at = cut(at, owner)
  ask.hash, at = cut(at, hash)
  ask.about = cut(at, about)
  local r, value, was = find(ask.where)
  if not r then
    return anew(ask, was)
  end
  return judge(ask, r, value)
end

for i = 1, count do
  if later[i] then
    letters[i], values[i] = claim_known(later[i])
  end
end
return answered()
