-- endings: what takes a record apart to end or renew a claim: all that settle.lua has put off.

local UNSTARTED = 2 ^ 53
local verbs = {}

-- Nobody is told that a claim is lost but by a server that can write: a replica may not have heard of the claim yet.
note()

-- Complete: retention, result, error; c with the result null, and no texts.
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

function verbs.c(r, retention)
  verbs.C(r, retention, NULL)
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
    return string.upper(state) == string.upper(verb) and '1' or '0'
  end
  verbs[verb](r, number, one, two)
  save(where, state, r)
  return '1'
end

for _, i in ipairs(later) do
  answers[i] = settle(i)
end
return table.concat(answers)
