-- settle: complete, release, bury or renew claims.
--
-- A request has a verb, the lengths of address and proof, a number, and the lengths of two texts; then address, proof
-- and the two texts. endings.lua documents the number and the texts of each verb. The proof is fence and owner in the
-- form that they have in a record. The answer is a digit for each request: 1, or 0 if the client no longer holds the
-- claim.

local REQUEST = '>c1I4I4I8I4I4'
local PROOF = 26 -- position of the proof in a record
local NO_OWNER = 8 -- the length of a proof with an empty owner; such a proof is never accepted
local LONGEST_STRETCH = EXPIRY_GRACE / 2 * 1000 -- microseconds
local IN_PROGRESS = byte('P')

local starts, keys, count, at = {}, {}, 0, 1
while at <= size do
  local _, address, proof, _, one, two, start = struct.unpack(REQUEST, batch, at)
  count = count + 1
  starts[count], keys[count] = at, base .. 'r' .. sub(batch, start, start + address - 1)
  at = start + address + proof + (one < NONE and one or 0) + (two < NONE and two or 0)
end
for from = 2, count, 1000 do
  for i, value in ipairs(call('MGET', unpack(keys, from, math.min(from + 999, count)))) do
    ahead[keys[from + i - 1]] = value
  end
end

-- Nearly every settlement completes a claim within seconds and with the result null, and the only text in the tail of
-- its record is about. In this case, only the first 16 bytes of the record change. The expiry of the key in Redis does
-- not change, as long as Redis deletes the key at least half of EXPIRY_GRACE after the new expiry of the record. All
-- other requests are deferred until these requests are answered. Later requests on the same record are deferred, too.
local deferred
local answers = {}
local last_retention, completed
for i = 1, count do
  local key = keys[i]
  local verb, address, proof, retention, _, _, at = struct.unpack(REQUEST, batch, starts[i])
  local value = ahead[key]
  if value == nil then
    value = call('GET', key)
  end
  local expires = value and struct.unpack('>I7', value, EXPIRES)
  local about = value and PROOF + proof + byte(value, HASH)
  if verb == 'c' and value
    and sub(value, PROOF, PROOF + proof - 1) == sub(batch, at + address, at + address + proof - 1)
    and proof > NO_OWNER and byte(value) == IN_PROGRESS and byte(value, ATTEMPTS_HIGH) == 0 and now < expires
    and about + byte(value, about) == #value and now + retention - expires <= LONGEST_STRETCH
    and not (deferred and deferred[key]) then
    if retention ~= last_retention then
      last_retention, completed = retention, struct.pack('>c1I7BI7', 'C', now, 0, now + retention)
    end
    ahead[key] = nil
    call('SETRANGE', key, 0, completed)
    answers[i] = '1'
  else
    deferred = deferred or {}
    deferred[key], deferred[#deferred + 1] = true, i
    answers[i] = ''
  end
end
if not deferred then
  return table.concat(answers)
end
