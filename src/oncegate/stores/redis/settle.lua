-- settle and renew: holders of claims end them or go on.
--
-- Each request is a verb, lengths of where and proof, a number, lengths of two texts; what the number and the texts are
-- is told at each verb. The proof is fence and owner as a record has them. Answered is a digit for each: 1, or 0 if the
-- claim is no longer the asker's.

local REQUEST = '>c1I4I4I8I4I4'
local PROOF = 26 -- where it is in a record
local UNSTARTED = 2 ^ 53
local STRETCH = KEPT_ON / 2 * 1000
local now = tick()
local verbs = {}

-- Complete: retention, result, error.
function verbs.C(r, retention, result, error)
  local about = next_text(r.tail, 1)
  r.state, r.moment, r.expires = 'C', now, now + retention
  if result ~= NULL or error then
    r.tail = tail(about, result, error)
    if not result and not error then
      r.tail = r.tail .. '\255'
    end
  else
    r.tail = text(about)
  end
end

-- Release: the delay, or the largest number if it never started; nothing, error.
function verbs.R(r, delay, _, error)
  local unstarted = delay >= UNSTARTED
  local about, result, error_before, payload = texts(r.tail)
  if not error or error == '' then
    error = error_before
  end
  r.state = r.state == 'p' and 'r' or 'R'
  r.moment = unstarted and 0 or now + delay
  r.attempts = r.attempts - (unstarted and 1 or 0)
  r.tail = tail(about, result, error, payload)
end

-- Bury: retention, payload, error.
function verbs.D(r, retention, payload, error)
  local about, result = texts(r.tail)
  r.state, r.moment, r.expires = 'D', 0, now + retention
  r.tail = tail(about, result, error, payload)
end

-- Renew: lease.
function verbs.N(r, lease)
  r.moment = now + lease
  if r.expires > 0 then
    r.expires = math.max(r.expires, r.moment)
  end
end

local last_retention, completed

-- What nearly every settlement is: a claim of the first attempt completed with the result null, within seconds. Only
-- the first 16 bytes of the record change, and Redis keeps it for longer than it needs to be kept already.
local function complete_in_place(key, value, by_256, expires, hash, proof, retention)
  local about = PROOF + #proof + hash
  if about + string.byte(value, about) ~= #value or by_256 > 0 or now + retention - expires > STRETCH then
    return false
  end
  if retention ~= last_retention then
    last_retention, completed = retention, struct.pack('>c1I7BI7', 'C', now, 0, now + retention)
  end
  ahead[key] = nil
  redis.call('SETRANGE', key, 0, completed)
  return true
end

local function settle(verb, where, proof, number, one, two)
  local key = base .. 'r' .. where
  local value = get(key)
  if not value or string.sub(value, PROOF, PROOF + #proof - 1) ~= proof then
    return '0'
  end
  local state, _, by_256, expires, _, _, hash = struct.unpack(HEAD, value)
  if expires > 0 and now >= expires then
    return '0'
  elseif state ~= 'P' and state ~= 'p' then
    return string.upper(state) == verb and '1' or '0'
  elseif verb == 'C' and state == 'P' and one == NULL and not two then
    if complete_in_place(key, value, by_256, expires, hash, proof, number) then
      return '1'
    end
  end
  local r = parse(value)
  verbs[verb](r, number, one, two)
  save(where, state, r, now)
  return '1'
end

-- The parts of every request first, so that all records can be read ahead.
local requests, keys = {}, {}
local at = 1
local size = #batch
while at <= size do
  local verb, where, proof, number, one, two
  verb, where, proof, number, one, two, at = struct.unpack(REQUEST, batch, at)
  where, at = cut(at, where)
  proof, at = cut(at, proof)
  one, at = cut(at, one)
  two, at = cut(at, two)
  requests[#requests + 1] = {verb, where, proof, number, one, two}
  keys[#keys + 1] = base .. 'r' .. where
end
read_ahead(keys)

local answers = {}
for i, request in ipairs(requests) do
  answers[i] = settle(unpack(request, 1, 6))
end
return table.concat(answers)
