-- The second part of settle. It handles the deferred requests, which need a parsed record.

local UNSTARTED = 2 ^ 53
local ENDS_IN = {C = 'C', c = 'C', H = 'C', R = 'R', U = 'R', D = 'D'}
local verbs = {}

-- Store the time, because the answer 0 must come from a server that accepts writes. A replica may not have the newest
-- claims.
store_time()

-- Complete. The number is the retention, and the texts are the result and the error. Verb c has no texts, and its
-- result is null. In verb H, the second text holds two texts in the form of a tail: the error, and the place that the
-- event was handed to. A completion removes the number of lost attempts and the time of unavailability.
function verbs.C(r, retention, result, error, handed)
  local texts = {(next_text(r.tail, 1))}
  texts[RESULT], texts[ERROR], texts[HANDED] = result, error, handed
  r.state, r.moment, r.expires = 'C', now, now + retention
  if result == NULL and not error and not handed then
    texts[RESULT] = nil
  end
  r.tail = pack_tail(texts)
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

-- Release. The number is the delay, or UNSTARTED if the handler never started. The first text is absent, and the second
-- text is the error. Verb U releases a claim because a service is unavailable. An attempt that never started says
-- nothing about the event, so the number of lost attempts and the time of unavailability do not change.
function verbs.R(r, delay, _, error, unavailable)
  local unstarted = delay >= UNSTARTED
  local texts = parse_tail(r.tail)
  if error and error ~= '' then
    texts[ERROR] = error
  end
  r.state = r.state == 'p' and 'r' or 'R'
  r.moment = unstarted and 0 or now + delay
  r.attempts = r.attempts - ((unstarted or unavailable) and 1 or 0)
  if not unstarted then
    texts[LOST] = nil
    texts[SINCE] = unavailable and (texts[SINCE] or struct.pack('>I7', now)) or nil
  end
  r.tail = pack_tail(texts)
end

function verbs.U(r, delay, _, error)
  verbs.R(r, delay, nil, error, true)
end

-- Bury. The number is the retention, and the texts are the payload and the error.
function verbs.D(r, retention, payload, error)
  local texts = parse_tail(r.tail)
  texts[PAYLOAD], texts[ERROR] = payload, error
  r.state, r.moment, r.expires = 'D', 0, now + retention
  r.tail = pack_tail(texts)
end

-- Renew. The number is the lease. There are no texts.
function verbs.N(r, lease)
  r.moment = now + lease
  if r.expires > 0 then
    r.expires = math.max(r.expires, r.moment)
  end
end

-- Execute the request with this number, and return its digit.
local function settle(i)
  local verb, address, proof, number, one, two, start = struct.unpack(REQUEST, batch, starts[i])
  address, start = cut(start, address)
  proof, start = cut(start, proof)
  one, start = cut(start, one)
  two = cut(start, two)
  local value = get(keys[i])
  if not value or #proof == NO_OWNER or sub(value, PROOF, PROOF + #proof - 1) ~= proof then
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
  save(address, state, r)
  return '1'
end

for _, i in ipairs(deferred) do
  answers[i] = settle(i)
end
return table.concat(answers)
