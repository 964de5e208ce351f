-- settle and renew: holders of claims end them or go on.
--
-- Each request is a verb, lengths of where and proof, a number, lengths of two texts; what the number and the texts are
-- is told at each verb. The proof is fence and owner as a record has them. Answered is a digit for each: 1, or 0 if the
-- claim is no longer the asker's.

local REQUEST = '>c1I4I4I8I4I4'
local PROOF = 26 -- where it is in a record
local STRETCH = KEPT_ON / 2 * 1000
local IN_PROGRESS = string.byte('P')
local now = tick()

-- What the requests say first, so that all records can be read ahead. Those that are `plain` complete with the result
-- null, and have their retention there.
local starts, keys, proofs, plain = {}, {}, {}, {}
local at, size = 1, #batch
while at <= size do
  local verb, where, proof, number, one, two, start = struct.unpack(REQUEST, batch, at)
  local n = #keys + 1
  starts[n] = at
  keys[n] = base .. 'r' .. string.sub(batch, start, start + where - 1)
  proofs[n], at = cut(start + where, proof)
  one, at = cut(at, one)
  two, at = cut(at, two)
  plain[n] = verb == 'C' and one == NULL and not two and number
end
read_ahead(keys)

local last_retention, completed

-- What nearly every settlement is: a claim of the first attempt completed with the result null, within seconds. Only
-- the first 16 bytes of the record change, and Redis keeps it for longer than it needs to be kept already.
local function complete_in_place(key, value, about, retention)
  local expires = struct.unpack('>I7', value, EXPIRES)
  if string.byte(value) ~= IN_PROGRESS or string.byte(value, BY_256) > 0 or now >= expires
    or about + string.byte(value, about) ~= #value or now + retention - expires > STRETCH then
    return false
  end
  if retention ~= last_retention then
    last_retention, completed = retention, struct.pack('>c1I7BI7', 'C', now, 0, now + retention)
  end
  ahead[key] = nil
  redis.call('SETRANGE', key, 0, completed)
  return true
end

-- The answer to one request; nothing for one that is neither plainly completed nor another's.
local function settle(i)
  local key, proof = keys[i], proofs[i]
  local value = get(key)
  if not value or string.sub(value, PROOF, PROOF + #proof - 1) ~= proof then
    return '0'
  elseif plain[i] and complete_in_place(key, value, PROOF + #proof + string.byte(value, HASH), plain[i]) then
    return '1'
  end
end

local answers = {}
for i = 1, #keys do
  answers[i] = settle(i)
  if not answers[i] then
    break
  end
end
if #answers == #keys then
  return table.concat(answers)
end
