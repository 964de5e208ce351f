-- claim: deliveries ask for the right to run.
--
-- Each request is lengths of where, owner, hash and about; its terms, which are lease, retention, slides, and 1 if it
-- binds plus 2 if it marks; then where, owner, hash and about. The last three stand in a record as they stand here, so
-- they are cut out as one block. Answered are the time, a letter for each request (N granted anew: the client knows the
-- record; G granted, U duplicate, I in flight, X conflict, B buried), and a record for each letter but N. ARGV[3] and
-- on are the places that the requests are in.

local LENGTHS, TERMS, TERMS_SIZE = '>I4BBI4', '>I8I8I8B', 25
local MARKS = 2
local COMPLETED = string.byte('C')
local now = tick()
for i = 3, #ARGV do
  redis.call('SADD', base .. 'n', ARGV[i])
end

-- A record that is new is `front`, its block and `rear`, and Redis keeps it for so long. Most batches have one lease
-- and one retention, so these are made once.
local front, rear, kept, slides
local for_terms, for_owner, for_hash

local function prepare(terms, owner, hash)
  local lease, retention, flags
  lease, retention, slides, flags = struct.unpack(TERMS, terms)
  local state, moment = 'P', now + lease
  rear = ''
  if flags >= MARKS then
    state, moment = 'c', now
    rear = '\255\255\255\7' .. struct.pack('>I7', now + lease)
  end
  front = struct.pack(HEAD, state, moment, 0, now + retention, 1, now, hash, now, owner)
  kept = string.format('%.0f', kept_for(now + retention, now))
  for_terms, for_owner, for_hash = terms, owner, hash
end

-- The keys of the requests from here on.
local function keys_from(at)
  local keys = {}
  while at <= #batch do
    local where, owner, hash, about, start = struct.unpack(LENGTHS, batch, at)
    start = start + TERMS_SIZE
    keys[#keys + 1] = base .. 'r' .. string.sub(batch, start, start + where - 1)
    at = start + where + owner + hash + about
  end
  return keys
end

-- Whether a record is what nearly every known one is: completed, by another, with the same content. It is not taken
-- apart then.
local function plainly_done(value, owner, hash, block)
  local about = block + owner + hash
  local expires = struct.unpack('>I7', value, EXPIRES)
  return string.byte(value) == COMPLETED and slides == 0 and now < expires
    and string.byte(value, HASH) == hash and string.byte(value, OWNER - 1) == owner
    and string.sub(value, OWNER + owner, OWNER + owner + hash - 1) == string.sub(batch, block + owner, about - 1)
    and string.sub(value, OWNER, OWNER + owner - 1) ~= string.sub(batch, block, block + owner - 1)
end

local letters, answer = {}, {now, ''}
local reading_ahead = false
local at, size = 1, #batch

-- The request at `at`, which moves on; nothing for one that is not plainly new or done. New events come with new ones
-- and duplicates with duplicates: so it is first written as if it were new, and after the first one that is not, all
-- others are read ahead.
local function claim()
  local where, owner, hash, about, start = struct.unpack(LENGTHS, batch, at)
  local terms = string.sub(batch, start, start + TERMS_SIZE - 1)
  if terms ~= for_terms or owner ~= for_owner or hash ~= for_hash then
    prepare(terms, owner, hash)
  end
  start = start + TERMS_SIZE
  local block = start + where
  local stop = block + owner + hash + about
  local key = base .. 'r' .. string.sub(batch, start, block - 1)
  if not ahead[key] then
    ahead[key] = nil
    if redis.call('SET', key, front .. string.sub(batch, block, stop - 1) .. rear, 'NX', 'PX', kept) then
      at = stop
      return 'N'
    end
    if not reading_ahead then
      reading_ahead = true
      read_ahead(keys_from(at))
    end
  end
  local value = get(key)
  if plainly_done(value, owner, hash, block) then
    at = stop
    return 'U', value
  end
end

local letter = true
while letter and at <= size do
  letter, answer[#answer + 1] = claim()
  letters[#letters + 1] = letter
end
if letter then
  answer[2] = table.concat(letters)
  return answer
end
