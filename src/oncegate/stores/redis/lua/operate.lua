-- redrive and reset: what people do.
--
-- Each request is a verb and the length of where: V redrive, X reset, d reset if it is a dead letter. Answered is a
-- digit for each.

-- A replica refuses this, so that it tells nobody what is not there; a server that is full does not, and so has room made.
call('DEL', base)

-- The worker that buried it has no say any more, so nobody owns it.
local function redrive(where, r)
  note()
  local t = texts(r.tail)
  t[LOST], t[SINCE] = nil, nil
  r.state, r.owner, r.attempts, r.moment, r.expires = 'r', '', 0, 0, 0
  r.tail = tail(t)
  save(where, 'D', r)
end

local function operate(verb, where)
  local r = find(where)
  if not r or (verb ~= 'X' and r.state ~= 'D') then
    return '0'
  end
  if verb == 'V' then
    redrive(where, r)
  else
    ahead[base .. 'r' .. where] = nil
    call('DEL', base .. 'r' .. where)
    index(where, r.state, nil)
  end
  return '1'
end

local answers = {}
local at = 1
while at <= #batch do
  local verb, where
  verb, where, at = struct.unpack('>c1I4', batch, at)
  where, at = cut(at, where)
  answers[#answers + 1] = operate(verb, where)
end
return table.concat(answers)
