-- claim: deliveries ask for the right to run.
--
-- Each request is lengths of where, owner, hash and about; its terms, which are lease, retention, slides, and 1 if it
-- binds plus 2 if it marks; then where, owner, hash and about. The last three stand in a record as they stand here, so
-- they are cut out as one block. Answered is a text: the time (I7) and a letter for each request (N granted anew: the
-- client knows the record; K known and unchanged: the client judges it; G granted, U duplicate, I in flight, X conflict,
-- B buried). The record of the letter that is no N follows it; where there are several, the answer is a list of that
-- text and the records. With an ARGV[3] the places of all requests but K are noted: the client is not sure that they are;
-- else only where nothing was noted yet. For K nothing is written at all, so that a server which takes no writes answers.

local REQUEST, REQUEST_SIZE = '>I4BBI4I8I8I8B', 35
local MARKS = 2
local COMPLETED = byte('C')

-- A record that is new is `front`, its block and `rear`, and Redis keeps it for so long. Most batches have one lease
-- and one retention, so these are made once.
local front, rear, kept
local for_lease, for_retention, for_flags, for_owner, for_hash

-- What is not plainly new or done waits until all else is answered, and so does what is about the same record: its key
-- is here, and the places of the requests in the batch by their numbers.
local later
local letters, values, count = {}, {}, 0
local granted = false
local keys -- by number, once all are read ahead
local at = 1
while at <= size do
  local start = at
  local where, owner, hash, about, lease, retention, slides, flags, block = struct.unpack(REQUEST, batch, at)
  block = block + where
  at = block + owner + hash + about
  count = count + 1
  local key = keys and keys[count] or base .. 'r' .. sub(batch, start + REQUEST_SIZE, block - 1)
  local letter, value = nil, ahead[key]

  -- New events come with new ones and duplicates with duplicates: so it is first written as if it were new, and after
  -- the first one that is not, all others are read ahead.
  if not value and not (later and later[key]) then
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
      kept = string.format('%.0f', math.ceil((now - clock + retention) / 1000) + KEPT_ON)
    end
    ahead[key] = nil
    if call('SET', key, front .. sub(batch, block, at - 1) .. rear, 'NX', 'PX', kept) then
      letter, granted = 'N', true
    else
      value = call('GET', key)
    end
  end
  if value and at <= size and not keys then
    keys = {}
    local number, place = count, at
    while place <= size do
      local where_, owner_, hash_, about_ = struct.unpack(REQUEST, batch, place)
      number, place = number + 1, place + REQUEST_SIZE
      keys[number] = base .. 'r' .. sub(batch, place, place + where_ - 1)
      place = place + where_ + owner_ + hash_ + about_
    end
    for from = count + 1, number, 1000 do
      for i, each in ipairs(call('MGET', unpack(keys, from, math.min(from + 999, number)))) do
        ahead[keys[from + i - 1]] = each
      end
    end
  end

  -- What nearly every known record is: completed. Whatever this claim is then, it changes nothing, so that the client
  -- can judge it.
  if value and byte(value) == COMPLETED and slides == 0 and now < struct.unpack('>I7', value, EXPIRES)
    and not (later and later[key]) then
    letter, values[count] = 'K', value
  elseif ARGV[3] or not noted then
    call('SADD', base .. 'n', sub(key, #base + 2, string.find(key, '\0', #base + 2, true)))
  end
  if not letter then
    later = later or {}
    later[key], later[count] = true, start
  end
  letters[count] = letter or ''
end
if granted or later then
  call('SET', KEYS[1], struct.pack('>I7I7', now, clock))
end

if count == 1 and not later then
  return struct.pack('>I7', now) .. letters[1] .. (values[1] or '')
end

local function answered()
  local answer, last = {struct.pack('>I7', now) .. table.concat(letters)}, 1
  for i = 1, count do
    if values[i] then
      last = last + 1
      answer[last] = values[i]
    end
  end
  return last > 2 and answer or table.concat(answer)
end

if not later then
  return answered()
end
