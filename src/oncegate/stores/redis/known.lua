-- known: claims on records that are there, or were, and are not plainly done. It goes on where claim.lua has stopped.

-- What was granted to a marking claim is completed at once, with the time in which its effect may start.
local function mark(r, retention)
  local about, result, error = texts(r.tail)
  r.tail = tail(about, result, error, nil, r.moment)
  r.state, r.moment, r.expires = 'c', now, now + retention
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
    mark(r, ask.retention)
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

-- The request at `at`, which moves on, on a record that is there.
local function claim_known()
  local where, owner, hash, about, start = struct.unpack(LENGTHS, batch, at)
  local lease, retention, slides, flags
  lease, retention, slides, flags, start = struct.unpack(TERMS, batch, start)
  at = start + where + owner + hash + about
  where = string.sub(batch, start, start + where - 1)
  local block = string.sub(batch, start + #where, at - 1)
  local r, value, was = find(where, now)
  if not r then
    write(base .. 'r' .. where, front .. block .. rear, now + retention, now)
    index(where, was, nil, nil, now)
    return 'N'
  end
  local ask = {where = where, lease = lease, retention = retention, slides = slides}
  ask.owner, ask.hash = string.sub(block, 1, owner), string.sub(block, owner + 1, owner + hash)
  ask.binds, ask.marks = flags % 2 == 1, flags >= MARKS
  return judge(ask, r, value)
end

while at <= size do
  local value
  letter, value = claim()
  if not letter then
    letter, value = claim_known()
  end
  letters[#letters + 1], answer[#answer + 1] = letter, value
end
answer[2] = table.concat(letters)
return answer
