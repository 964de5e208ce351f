-- claim: deliveries ask for the right to run.
--
-- Each request is lengths of where and of a block, lease, retention, slides, and 1 if it binds plus 2 if it marks. The
-- block is owner, hash and about as a record has them. Answered are the time, a letter for each request (N granted
-- anew: the client knows the record; G granted, U duplicate, I in flight, X conflict, B buried), and a record for each
-- letter but N. ARGV[3] and on are the places that the requests are in.

local REQUEST = '>I4I4I8I8I8B'
local MARKS = 2
local now = tick()
redis.call('SADD', base .. 'n', unpack(ARGV, 3))
local letters, answer = {}, {now, ''}

-- A record that is new is this, the block, and this, and Redis keeps it for so long. Most batches have one lease and
-- one retention.
local before, after, kept
local last_lease, last_retention, last_marks

local function prepare(lease, retention, marks)
  local state, moment = 'P', now + lease
  after = ''
  if marks then
    state, moment = 'c', now
    after = '\255\255\255' .. text(struct.pack('>I7', now + lease))
  end
  before = struct.pack('>c1I7I7HI7I7', state, moment, now + retention, 1, now, now)
  kept = string.format('%.0f', kept_for(now + retention, now))
  last_lease, last_retention, last_marks = lease, retention, marks
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

local function known(where, block, lease, retention, slides, flags, r, value)
  local ask = {where = where, lease = lease, retention = retention, slides = slides}
  ask.owner, ask.hash = struct.unpack('>Bc0Bc0', block)
  ask.binds, ask.marks = flags % 2 == 1, flags >= MARKS
  return judge(ask, r, value)
end

-- The keys of the requests from here on.
local function keys_from(at)
  local keys = {}
  while at <= #batch do
    local where, block, _, _, _, _, next = struct.unpack(REQUEST, batch, at)
    keys[#keys + 1] = base .. 'r' .. string.sub(batch, next, next + where - 1)
    at = next + where + block
  end
  return keys
end

-- New events come with new ones, and duplicates with duplicates. So a request is first written as if it were new; after
-- the first that is not, the others are read ahead.
local reading_ahead = false

local function claim(where, block, lease, retention, slides, flags, next)
  local marks = flags >= MARKS
  if lease ~= last_lease or retention ~= last_retention or marks ~= last_marks then
    prepare(lease, retention, marks)
  end
  local key = base .. 'r' .. where
  local value = before .. block .. after
  if not ahead[key] and redis.call('SET', key, value, 'NX', 'PX', kept) then
    ahead[key] = nil
    return 'N'
  end
  if not reading_ahead then
    reading_ahead = true
    read_ahead(keys_from(next))
  end
  local r, stored, was = find(where, now)
  if r then
    return known(where, block, lease, retention, slides, flags, r, stored)
  end
  ahead[key] = nil
  redis.call('SET', key, value, 'PX', kept)
  index(where, was, nil, nil, now)
  return 'N'
end

local at = 1
local size = #batch
while at <= size do
  local where, block, lease, retention, slides, flags, next
  where, block, lease, retention, slides, flags, at = struct.unpack(REQUEST, batch, at)
  next = at + where + block
  letters[#letters + 1], answer[#answer + 1] = claim(
    string.sub(batch, at, at + where - 1), string.sub(batch, at + where, next - 1), lease, retention, slides, flags, next
  )
  at = next
end
answer[2] = table.concat(letters)
return answer
