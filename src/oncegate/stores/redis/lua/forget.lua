-- forget: remove what identifies a person from records, for operators.
--
-- A request has a verb and the length of the address; then the address, and the retention as I8. With verb W, waiting
-- events lose their payload, too. Verb F leaves waiting events unchanged. The answer is a digit for each request: 1, or
-- 0 if the record is absent, in progress, or waiting.

local ERASED = 'erased before it was processed'
local NIL = '\192'
local SIZES = {[204] = 1, [205] = 2, [206] = 4, [207] = 8, [208] = 1, [209] = 2, [210] = 4, [211] = 8}
local LENGTHS = {[217] = '>B', [218] = '>I2', [219] = '>I4'}

-- Store the time, because the answer 0 must come from a server that accepts writes.
store_time()

-- Return the element at a position of a MessagePack array, and the position after the element. The element is nil, a
-- string or an integer.
local function next_element(packed, at)
  local kind, stop = byte(packed, at), at + 1
  if not kind then
    return NIL, at
  elseif kind >= 160 and kind < 192 then
    stop = stop + kind - 160
  elseif LENGTHS[kind] then
    local length
    length, stop = struct.unpack(LENGTHS[kind], packed, stop)
    stop = stop + length
  elseif SIZES[kind] then
    stop = stop + SIZES[kind]
  end
  return sub(packed, at, stop - 1), stop
end

-- Return a summary without the delivery id and the entity. codec.py documents the form of a summary.
local function strip(about)
  local at, elements = 2, {}
  if byte(about) >= 160 then
    at = 18 -- a UUID follows the first byte
  end
  for i = 1, 5 do
    elements[i], at = next_element(about, at)
  end
  elements[3], elements[4] = NIL, NIL
  local count = 5
  while elements[count] == NIL do
    count = count - 1
  end
  return string.char(144 + count) .. table.concat(elements, '', 1, count)
end

-- Remove the payload of an event that has not been processed, and complete its record.
local function erase(r, about, retention)
  r.state, r.owner, r.moment, r.expires = 'C', '', now, now + retention
  r.tail = pack_tail({about, nil, ERASED})
end

local function strip_record(r, texts, about)
  local erased = r.state == 'C' and texts[ERROR] == ERASED
  texts[ABOUT], texts[RESULT], texts[ERROR] = about, nil, erased and ERASED or nil
  r.tail = pack_tail(texts)
  if r.state == 'C' and #r.tail == #pack_text(about) then
    r.tail = r.tail .. '\255' -- without this byte, the result would be null instead of absent
  end
end

local function forget(verb, address, retention)
  local r, value, before = find(address)
  if not r or has_lease(r) or (WAITS[before] and verb ~= 'W') then
    return '0'
  end
  local texts = parse_tail(r.tail)
  local about = strip(texts[ABOUT])
  if before == 'D' or WAITS[before] then
    erase(r, about, retention)
  else
    strip_record(r, texts, about)
  end
  if pack(r) ~= value then
    save(address, before, r)
  end
  return '1'
end

local answers = {}
local at = 1
while at <= #batch do
  local verb, address, retention
  verb, address, at = struct.unpack('>c1I4', batch, at)
  address, at = cut(at, address)
  retention, at = struct.unpack('>I8', batch, at)
  answers[#answers + 1] = forget(verb, address, retention)
end
return table.concat(answers)
