-- operate: redrive and reset records, for operators.
--
-- A request has a verb and the length of the address; then the address. Verb V redrives a record. Verb X resets a
-- record. Verb d resets a record only if it is a dead letter. The answer is a digit for each request: 1, or 0 if
-- nothing changed.

-- This key never exists, but DEL is a write. A replica rejects a write, so a replica never reports a record as absent.
-- A server that is out of memory accepts DEL, so records can be deleted to free memory.
call('DEL', base)

-- Return a dead letter to processing. The owner is removed, so that the worker that buried the event can no longer
-- settle the claim.
local function redrive(address, r)
  store_time()
  local texts = parse_tail(r.tail)
  texts[LOST], texts[SINCE] = nil, nil
  r.state, r.owner, r.attempts, r.moment, r.expires = 'r', '', 0, 0, 0
  r.tail = pack_tail(texts)
  save(address, 'D', r)
end

local function operate(verb, address)
  local r = find(address)
  if not r or (verb ~= 'X' and r.state ~= 'D') then
    return '0'
  end
  if verb == 'V' then
    redrive(address, r)
  else
    ahead[base .. 'r' .. address] = nil
    call('DEL', base .. 'r' .. address)
    update_lists(address, r.state, nil)
  end
  return '1'
end

local answers = {}
local at = 1
while at <= #batch do
  local verb, address
  verb, address, at = struct.unpack('>c1I4', batch, at)
  address, at = cut(at, address)
  answers[#answers + 1] = operate(verb, address)
end
return table.concat(answers)
