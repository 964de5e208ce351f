-- The second part of claim. It handles the deferred requests. Their records exist and are not plainly completed, or
-- have expired.

local UNKNOWN = '' -- the hash of a record whose content is unknown; it matches any content

-- Complete the record of a claim that marks. Such a claim completes its record at once. The record keeps the lease of
-- the claim, because the effect may start until the lease ends.
local function mark(r, retention)
  local texts = parse_tail(r.tail)
  texts[PAYLOAD], texts[LEASE], texts[LOST], texts[SINCE] = nil, struct.pack('>I7', r.moment), nil, nil
  r.tail = pack_tail(texts)
  r.state, r.moment, r.expires = 'c', now, now + retention
end

local function grant_known(request, r)
  local before = r.state
  grant_again(r, request.owner, request.lease)
  r.hash = request.hash
  if WAITS[before] then
    r.state = 'p'
  else
    r.state, r.expires = 'P', now + request.retention
  end
  if request.marks then
    mark(r, request.retention)
  end
  return save(request.address, before, r)
end

-- Return the value of a completed record after a duplicate claim. Only a sliding claim moves the expiry of the record,
-- and only to a later time.
local function slide(request, r, value)
  local expires = math.min(now + request.retention, r.first + request.slides)
  if expires <= r.expires then
    return value
  end
  r.expires = expires
  return save(request.address, r.state, r)
end

-- Return the letter and the value of the record, by the rules of `oncegate.claims.step`.
local function decide(request, r, value)
  local state, leased, own = r.state, has_lease(r), r.owner == request.owner
  if own and (leased or state == 'C' or state == 'c') then
    return 'G', value
  elseif request.binds and r.hash ~= request.hash and r.hash ~= UNKNOWN then
    return 'X', value
  elseif leased then
    return 'I', value
  elseif state == 'r' then
    return 'U', value
  elseif state == 'R' and own then
    return 'I', value
  elseif state == 'R' or state == 'P' or state == 'p' then
    return 'G', grant_known(request, r)
  elseif state == 'D' then
    return 'B', value
  end
  return 'U', slide(request, r, value)
end

local function grant_new(request, before)
  local r = {state = 'P', moment = now + request.lease, attempts = 1, expires = now + request.retention, first = now}
  r.fence, r.owner, r.hash, r.tail = now, request.owner, request.hash, request.about
  if request.marks then
    mark(r, request.retention)
  end
  save(request.address, before, r)
  return 'N'
end

-- Return the letter and the value of the record for the request at a position of the batch.
local function claim_known(start)
  local request = {}
  local address, owner, hash, about, flags, at
  address, owner, hash, about, request.lease, request.retention, request.slides, flags, at =
    struct.unpack(REQUEST, batch, start)
  request.binds, request.marks = flags % 2 == 1, flags >= MARKS
  request.address, at = cut(at, address)
  request.owner, at = cut(at, owner)
  request.hash, at = cut(at, hash)
  request.about = cut(at, about)
  local r, value, before = find(request.address)
  if not r then
    return grant_new(request, before)
  end
  return decide(request, r, value)
end

for i = 1, count do
  if deferred[i] then
    letters[i], values[i] = claim_known(deferred[i])
  end
end
return answer()
