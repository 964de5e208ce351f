-- endings: what takes a record apart to end or renew a claim: all that settle.lua has put off.

local UNSTARTED = 2 ^ 53
local ENDS_IN = {C = 'C', c = 'C', H = 'C', R = 'R', U = 'R', D = 'D'}
local verbs = {}

-- Nobody is told that a claim is lost but by a server that can write: a replica may not have heard of the claim yet.
note()

-- Complete: retention, result, error; c with the result null, and no texts; H with the error and the place that it was
-- handed to in one, as texts of a tail. What was lost and unavailable before is not kept.
function verbs.C(r, retention, result, error, handed)
  local t = {(next_text(r.tail, 1))}
  t[RESULT], t[ERROR], t[HANDED] = result, error, handed
  r.state, r.moment, r.expires = 'C', now, now + retention
  if result == NULL and not error and not handed then
    t[RESULT] = nil
  end
  r.tail = tail(t)
  if not (result or error or handed) then
    r.tail = r.tail .. '\255'
  end
end

function verbs.c(r, retention)
  verbs.C(r, retention, NULL)
end

function verbs.H(r, retention, result, both)
  local error, at = next_text(both, 1)
  verbs.C(r, retention, result, error, (next_text(both, at)))
end

-- Release: the delay, or the largest number if it never started; nothing, error. U because something is unavailable.
-- What never started has shown nothing, so that what was lost and unavailable before is kept.
function verbs.R(r, delay, _, error, unavailable)
  local unstarted = delay >= UNSTARTED
  local t = texts(r.tail)
  if error and error ~= '' then
    t[ERROR] = error
  end
  r.state = r.state == 'p' and 'r' or 'R'
  r.moment = unstarted and 0 or now + delay
  r.attempts = r.attempts - ((unstarted or unavailable) and 1 or 0)
  if not unstarted then
    t[LOST] = nil
    t[SINCE] = unavailable and (t[SINCE] or struct.pack('>I7', now)) or nil
  end
  r.tail = tail(t)
end

function verbs.U(r, delay, _, error)
  verbs.R(r, delay, nil, error, true)
end

-- Bury: retention, payload, error.
function verbs.D(r, retention, payload, error)
  local t = texts(r.tail)
  t[PAYLOAD], t[ERROR] = payload, error
  r.state, r.moment, r.expires = 'D', 0, now + retention
  r.tail = tail(t)
end

-- Renew: lease.
function verbs.N(r, lease)
  r.moment = now + lease
  if r.expires > 0 then
    r.expires = math.max(r.expires, r.moment)
  end
end

-- The answer to one request.
local function settle(i)
  local verb, where, proof, number, one, two, start = struct.unpack(REQUEST, batch, starts[i])
  where, start = cut(start, where)
  proof, start = cut(start, proof)
  one, start = cut(start, one)
  two = cut(start, two)
  local value = get(keys[i])
  if not value or #proof == NOBODY or sub(value, PROOF, PROOF + #proof - 1) ~= proof then
    return '0'
  end
  local r = parse(value)
  local state = r.state
  if r.expires > 0 and now >= r.expires then
    return '0'
  elseif state ~= 'P' and state ~= 'p' then
    return string.upper(state) == ENDS_IN[verb] and '1' or '0'
  end
  verbs[verb](r, number, one, two)
  save(where, state, r)
  return '1'
end

for _, i in ipairs(later) do
  answers[i] = settle(i)
end
return table.concat(answers)
