-- claim: grant the right to run an event.
--
-- A request has the lengths of address, owner, hash and about; then lease, retention, slides and flags; then the texts
-- address, owner, hash and about. Flags is 1 if the key binds the content, plus 2 if the claim marks. Owner, hash and
-- about have the same form and order in a record, so they are copied as one block.
--
-- The answer is a string: the time (I7), and a letter for each request:
--   N  granted, and the record is new; the client can compute the record
--   K  the record is completed and does not change; the client decides the verdict
--   G  granted     U  duplicate     I  in flight     X  conflict     B  buried
-- Each letter except N has a record. A single record follows the letters in the string. If there are several records,
-- the answer is a list of the string and the records.
--
-- With ARGV[3], the namespaces of all requests with a letter other than K are added to the list of namespaces, because
-- the client does not know whether the list has them. Without ARGV[3], the namespaces are added only if the bucket has
-- no stored time yet. A request with letter K writes nothing, so a server that rejects writes can still answer it.

local REQUEST, REQUEST_SIZE = '>I4BBI4I8I8I8B', 35
local MARKS = 2
local COMPLETED = byte('C')

-- The value of a new record is `front`, the block of its request and `rear`. `ttl` is the time until Redis deletes it,
-- in milliseconds. All requests of most batches have the same lease and retention, so `front`, `rear` and `ttl` are
-- computed again only if one of the values `for_…` changes.
local front, rear, ttl
local for_lease, for_retention, for_flags, for_owner, for_hash

-- Requests on records that are neither new nor plainly completed are deferred until all other requests are answered.
-- Later requests on the same record are deferred, too. `deferred` has two kinds of entries: the key of each such record
-- maps to true, and the number of each deferred request maps to the position of the request in the batch.
local deferred
local letters, values, count = {}, {}, 0
local granted = false
local keys -- the key of each request by its number; set when the records are read in advance
local at = 1
while at <= size do
  local start = at
  local address, owner, hash, about, lease, retention, slides, flags, block = struct.unpack(REQUEST, batch, at)
  block = block + address
  at = block + owner + hash + about
  count = count + 1
  local key = keys and keys[count] or base .. 'r' .. sub(batch, start + REQUEST_SIZE, block - 1)
  local letter, value = nil, ahead[key]

  -- Usually all events of a batch are new, or all are duplicates. So a record is first written as if it was new. After
  -- the first record that already exists, the records of all remaining requests are read in advance.
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

  -- Nearly every existing record is completed. No claim changes a completed record, except a sliding claim. So the
  -- client decides the verdict.
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
