-- settle and renew: holders of claims end them or go on.
--
-- Each request is a verb, lengths of where and proof, a number, lengths of two texts; what the number and the texts are
-- is told at each verb. The proof is fence and owner as a record has them. Answered is a digit for each: 1, or 0 if the
-- claim is no longer the asker's.

local REQUEST = '>c1I4I4I8I4I4'
local PROOF = 26 -- where it is in a record
local NOBODY = 8 -- its length with an empty owner, which proves nothing
local STRETCH = KEPT_ON / 2 * 1000
local IN_PROGRESS = byte('P')

local starts, keys, count, at = {}, {}, 0, 1
while at <= size do
  local _, where, proof, _, one, two, start = struct.unpack(REQUEST, batch, at)
  count = count + 1
  starts[count], keys[count] = at, base .. 'r' .. sub(batch, start, start + where - 1)
  at = start + where + proof + (one < NONE and one or 0) + (two < NONE and two or 0)
end
for from = 2, count, 1000 do
  for i, value in ipairs(call('MGET', unpack(keys, from, math.min(from + 999, count)))) do
    ahead[keys[from + i - 1]] = value
  end
end

-- What nearly every settlement is: a claim of the first attempt completed with the result null, within seconds. Only
-- the first 16 bytes of the record change, and Redis keeps it for longer than it needs to be kept already. All else waits
-- until these are done, and so does what is about the same record.
local later
local answers = {}
local last_retention, completed
for i = 1, count do
  local key = keys[i]
  local verb, where, proof, retention, _, _, at = struct.unpack(REQUEST, batch, starts[i])
  local value = ahead[key]
  if value == nil then
    value = call('GET', key)
  end
  local expires = value and struct.unpack('>I7', value, EXPIRES)
  local about = value and PROOF + proof + byte(value, HASH)
  if verb == 'c' and value and sub(value, PROOF, PROOF + proof - 1) == sub(batch, at + where, at + where + proof - 1)
    and proof > NOBODY and byte(value) == IN_PROGRESS and byte(value, BY_256) == 0 and now < expires
    and about + byte(value, about) == #value and now + retention - expires <= STRETCH
    and not (later and later[key]) then
    if retention ~= last_retention then
      last_retention, completed = retention, struct.pack('>c1I7BI7', 'C', now, 0, now + retention)
    end
    ahead[key] = nil
    call('SETRANGE', key, 0, completed)
    answers[i] = '1'
  else
    later = later or {}
    later[key], later[#later + 1] = true, i
    answers[i] = ''
  end
end
if not later then
  return table.concat(answers)
end
