-- operate: redrive and reset, for operators.
--
-- A request is a verb and the length of the address; then the address. V: redrive. X: reset. d: reset if the record is
-- a dead letter. The answer is a digit for each request.

-- A write, although this key never exists: a replica rejects it, so a replica never reports a record as absent. A
-- server that is full accepts it, so records can be deleted to free memory.
call('DEL', base)

-- Without an owner, the worker that buried the event can no longer settle it.
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
