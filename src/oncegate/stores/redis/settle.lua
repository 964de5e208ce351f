-- settle and renew: holders of claims end them or go on.
--
-- Each request is a verb, lengths of where and owner, the fence, a number, lengths of two texts; what the number and the
-- texts are is told at each verb. Answered is a digit for each: 1, or 0 if the claim is no longer the asker's.

local REQUEST = '>c1I4I4i8I8I4I4'
local now = tick()
local verbs = {}

-- Complete: retention, result, error.
function verbs.C(r, retention, result, error)
  local about = next_text(r.tail, 1)
  r.state, r.moment, r.expires = 'C', now, now + retention
  r.tail = tail(about, result, error)
end

-- Release: 1 if it never started, nothing, error.
function verbs.R(r, unstarted, _, error)
  local about, result, error_before, payload = texts(r.tail)
  if not error or error == '' then
    error = error_before
  end
  r.state = r.state == 'p' and 'r' or 'R'
  r.moment, r.attempts = now, r.attempts - unstarted
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

local function settle(verb, where, owner, fence, ...)
  local r = find(where, now)
  if not r or r.owner ~= owner or r.fence ~= fence then
    return '0'
  end
  local was = r.state
  if was ~= 'P' and was ~= 'p' then
    return string.upper(was) == verb and '1' or '0'
  end
  verbs[verb](r, ...)
  save(where, was, r, now)
  return '1'
end

local answers = {}
local at = 1
while at <= #batch do
  local verb, where, owner, fence, number, one, two
  verb, where, owner, fence, number, one, two, at = struct.unpack(REQUEST, batch, at)
  where, at = cut(at, where)
  owner, at = cut(at, owner)
  one, at = cut(at, one)
  two, at = cut(at, two)
  answers[#answers + 1] = settle(verb, where, owner, fence, number, one, two)
end
return table.concat(answers)
