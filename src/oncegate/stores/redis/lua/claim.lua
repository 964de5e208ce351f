-- claim: grant the right to run an event.
--
-- A request is the lengths of address, owner, hash and about; lease, retention, slides, and flags (1 if the key binds
-- the content, plus 2 if the claim marks); then address, owner, hash and about. The last three are in a record as they
-- are here, so they are copied as one block.
--
-- The answer is a string: the time (I7), and a letter for each request:
--   N  granted, and the record is new; the client knows the record
--   K  completed, and unchanged; the client decides
--   G  granted     U  duplicate     I  in flight     X  conflict     B  buried
-- The record follows for every letter but N. If there are several records, the answer is a list of the string and the
-- records.
--
-- With ARGV[3], the namespaces of all requests but K are added to the list, because the client does not know whether
-- they are in it. Without, they are added only if the bucket has no stored time yet. K writes nothing at all, so a
-- server that rejects writes can still answer.

local REQUEST, REQUEST_SIZE = '>I4BBI4I8I8I8B', 35
local MARKS = 2
local COMPLETED = byte('C')

-- A new record is `front`, the block of its request and `rear`; `ttl` is its expiry in Redis. Most batches have one
-- lease and one retention, so these are computed once.
local front, rear, ttl
local for_lease, for_retention, for_flags, for_owner, for_hash

-- Requests on records that are neither new nor plainly completed are deferred until all others are answered, and so are
-- later requests on the same record. `deferred` has the keys of their records, and by number of the request its
-- position.
local deferred
local letters, values, count = {}, {}, 0
local granted = false
local keys -- by number of the request, once all records are read ahead
local at = 1
while at <= size do
  local start = at
  local address, owner, hash, about, lease, retention, slides, flags, block = struct.unpack(REQUEST, batch, at)
  block = block + address
  at = block + owner + hash + about
  count = count + 1
  local key = keys and keys[count] or base .. 'r' .. sub(batch, start + REQUEST_SIZE, block - 1)
  local letter, value = nil, ahead[key]

  -- A batch is usually all new events or all duplicates. So a record is first written as if it were new. After the
  -- first record that exists, all others are read ahead.
  if not value and not (deferred and deferred[key]) then
    if lease ~= for_lease or retention ~= for_retention or flags ~= for_flags or owner ~= for_owner
      or hash ~= for_hash then
      for_lease, for_retention, for_flags, for_owner, for_hash = lease, retention, flags, owner, hash
      local state, moment = 'P', now + lease
      rear = ''
      if flags >= MARKS then
        state, moment = 'c', now
        rear = '\255\255\255\7' .. struct.pack('>I7', now + lease)
      end
      front = struct.pack(HEAD, state, moment, 0, now + retention, 1, now, hash, now, owner)
      ttl = string.format('%.0f', math.ceil((now - clock + retention) / 1000) + EXPIRY_GRACE)
    end
    ahead[key] = nil
    if call('SET', key, front .. sub(batch, block, at - 1) .. rear, 'NX', 'PX', ttl) then
      letter, granted = 'N', true
    else
      value = call('GET', key)
    end
  end
  if value and at <= size and not keys then
    keys = {}
    local number, position = count, at
    while position <= size do
      local address_, owner_, hash_, about_ = struct.unpack(REQUEST, batch, position)
      number, position = number + 1, position + REQUEST_SIZE
      keys[number] = base .. 'r' .. sub(batch, position, position + address_ - 1)
      position = position + address_ + owner_ + hash_ + about_
    end
    for from = count + 1, number, 1000 do
      for i, each in ipairs(call('MGET', unpack(keys, from, math.min(from + 999, number)))) do
        ahead[keys[from + i - 1]] = each
      end
    end
  end

  -- Nearly every existing record is completed. A claim does not change it, whatever the verdict, so the client decides.
  if value and byte(value) == COMPLETED and slides == 0 and now < struct.unpack('>I7', value, EXPIRES)
    and not (deferred and deferred[key]) then
    letter, values[count] = 'K', value
  elseif ARGV[3] or not stored_time then
    call('SADD', base .. 'n', sub(key, #base + 2, string.find(key, '\0', #base + 2, true)))
  end
  if not letter then
    deferred = deferred or {}
    deferred[key], deferred[count] = true, start
  end
  letters[count] = letter or ''
end
if granted or deferred then
  call('SET', KEYS[1], struct.pack('>I7I7', now, clock))
end

if count == 1 and not deferred then
  return struct.pack('>I7', now) .. letters[1] .. (values[1] or '')
end

local function answer()
  local parts, last = {struct.pack('>I7', now) .. table.concat(letters)}, 1
  for i = 1, count do
    if values[i] then
      last = last + 1
      parts[last] = values[i]
    end
  end
  return last > 2 and parts or table.concat(parts)
end

if not deferred then
  return answer()
end
