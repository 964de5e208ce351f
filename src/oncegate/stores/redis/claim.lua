-- claim: deliveries ask for the right to run.
--
-- Each request is lengths of where, owner, hash and about, lease, retention, slides, and 1 if it binds plus 2 if it
-- marks; then where, owner, hash and about. The last three stand in a record as they stand here, so they are cut out as
-- one block. Answered are the time, a letter for each request (N granted anew: the client knows the record; G granted,
-- U duplicate, I in flight, X conflict, B buried), and a record for each letter but N. ARGV[3] and on are the places
-- that the requests are in.

local REQUEST = '>I4BBI4I8I8I8B'
local MARKS = 2
local now = tick()
for i = 3, #ARGV do
  redis.call('SADD', base .. 'n', ARGV[i])
end

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

-- Whether a record is what nearly every known one is: completed, by another, with the same content. It is not taken
-- apart then.
local function plainly_done(value, owner, hash, block, slides)
  local state, _, _, expires, _, _, its_hash, _, its_owner = struct.unpack(HEAD, value)
  return state == 'C' and now < expires and slides == 0 and its_owner == owner and its_hash == hash
    and string.sub(value, OWNER, OWNER + owner - 1) ~= string.sub(block, 1, owner)
    and string.sub(value, OWNER + owner, OWNER + owner + hash - 1) == string.sub(block, owner + 1, owner + hash)
end

-- A record that is new is `before`, its block and `after`, and Redis keeps it for so long. Most batches have one lease
-- and one retention, so these are made once.
local before, after, kept
local for_lease, for_retention, for_flags, for_owner, for_hash

local function prepare(lease, retention, flags, owner, hash)
  if lease == for_lease and retention == for_retention and flags == for_flags
    and owner == for_owner and hash == for_hash then
    return
  end
  local state, moment = 'P', now + lease
  after = ''
  if flags >= MARKS then
    state, moment = 'c', now
    after = '\255\255\255' .. text(struct.pack('>I7', now + lease))
  end
  before = struct.pack(HEAD, state, moment, 0, now + retention, 1, now, hash, now, owner)
  kept = string.format('%.0f', kept_for(now + retention, now))
  for_lease, for_retention, for_flags, for_owner, for_hash = lease, retention, flags, owner, hash
end

-- The keys of the requests from here on.
local function keys_from(at)
  local keys = {}
  while at <= #batch do
    local where, owner, hash, about, _, _, _, _, next = struct.unpack(REQUEST, batch, at)
    keys[#keys + 1] = base .. 'r' .. string.sub(batch, next, next + where - 1)
    at = next + where + owner + hash + about
  end
  return keys
end

local letters, answer = {}, {now, ''}
local reading_ahead = false
local at = 1

-- The request at `at`, which moves on. New events come with new ones and duplicates with duplicates: so it is first
-- written as if it were new, and after the first one that is not, all others are read ahead.
local function claim()
  local where, owner, hash, about, lease, retention, slides, flags, start = struct.unpack(REQUEST, batch, at)
  at = start + where + owner + hash + about
  where = string.sub(batch, start, start + where - 1)
  local block = string.sub(batch, start + #where, at - 1)
  local key = base .. 'r' .. where
  prepare(lease, retention, flags, owner, hash)
  if not ahead[key] then
    ahead[key] = nil
    if redis.call('SET', key, before .. block .. after, 'NX', 'PX', kept) then
      return 'N'
    end
    if not reading_ahead then
      reading_ahead = true
      read_ahead(keys_from(at))
    end
  end
  local value = get(key)
  if plainly_done(value, owner, hash, block, slides) then
    return 'U', value
  end
  local r, _, was = find(where, now)
  if not r then
    write(key, before .. block .. after, now + retention, now)
    index(where, was, nil, nil, now)
    return 'N'
  end
  local ask = {where = where, lease = lease, retention = retention, slides = slides}
  ask.owner, ask.hash = string.sub(block, 1, owner), string.sub(block, owner + 1, owner + hash)
  ask.binds, ask.marks = flags % 2 == 1, flags >= MARKS
  return judge(ask, r, value)
end

while at <= #batch do
  letters[#letters + 1], answer[#answer + 1] = claim()
end
answer[2] = table.concat(letters)
return answer
