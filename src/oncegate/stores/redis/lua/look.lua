-- look: execute a query. Queries write nothing. Every answer starts with the time.
--
-- The batch is a list of texts. The length of each text precedes the text. The first text is the name of the query, and
-- the other texts are its arguments:
--
--   records    address, …            the value of each record, or an empty string
--   documents  address, …            the value of each document, or an empty string
--   key        key                   for each namespace that has a record of this key, the namespace and the record
--   waiting    count, namespace, …   for each namespace, at most `count` keys that can be taken, each followed by its
--                                    score; the keys that became due first come first
--   dead       limit, start, stop    the address and the record of each dead letter, in the order of the addresses
--   count dead limit, start, stop    the number of dead letters, at most `limit`

local answer = {now}
local arguments = {}
local queries = {}

local function read_values(kind)
  for i = 2, #arguments do
    answer[i] = call('GET', base .. kind .. arguments[i]) or ''
  end
end

function queries.records()
  read_values('r')
end

function queries.documents()
  read_values('v')
end

function queries.key()
  for _, namespace in ipairs(call('SMEMBERS', base .. 'n')) do
    local r, value = find(namespace .. arguments[2])
    if r then
      answer[#answer + 1] = namespace
      answer[#answer + 1] = value
    end
  end
end

function queries.waiting()
  for i = 3, #arguments do
    local list = base .. 'w' .. arguments[i]
    answer[i - 1] = call('ZRANGEBYSCORE', list, '-inf', now, 'WITHSCORES', 'LIMIT', 0, arguments[2])
  end
end

-- Call `add` with the addresses in the list of dead letters, until `add` has returned true `limit` times. The list can
-- have expired dead letters, because only a later burial removes them. So one page may need several reads. Redis may
-- have deleted an expired dead letter, and its key may have been claimed again. So `add` must check the state.
local function each_dead_letter(add)
  local left, start = tonumber(arguments[2]), arguments[3]
  while left > 0 do
    local found = call('ZRANGEBYLEX', base .. 'd', start, arguments[4], 'LIMIT', 0, 100)
    for _, address in ipairs(found) do
      if left > 0 and add(address) then
        left = left - 1
      end
    end
    if #found < 100 then
      break
    end
    start = '(' .. found[#found]
  end
  return tonumber(arguments[2]) - left
end

function queries.dead()
  each_dead_letter(function(address)
    local r, value = find(address)
    if not r or r.state ~= 'D' then
      return false
    end
    answer[#answer + 1] = address
    answer[#answer + 1] = value
    return true
  end)
end

-- Reads only the start of each record, with the state and the expiry. A dead letter always expires.
queries['count dead'] = function()
  answer[2] = each_dead_letter(function(address)
    local head = call('GETRANGE', base .. 'r' .. address, 0, EXPIRES + 5)
    return sub(head, 1, 1) == 'D' and now < struct.unpack('>I7', head, EXPIRES)
  end)
end

local at = 1
while at <= #batch do
  local length
  length, at = struct.unpack('>I4', batch, at)
  arguments[#arguments + 1], at = cut(at, length)
end
queries[arguments[1]]()
return answer
