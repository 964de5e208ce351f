-- look: what is there, for reading; nothing is written, and the time that it is read at is the first of every answer.
--
-- The batch is a list of texts, each after its length, the first of which says what is wanted:
--
--   records    where, …                      the value of each record, or nothing
--   documents  where, …                      the value of each document, or nothing
--   key        key                           place and record of that key wherever it was claimed
--   waiting    count, place, …               for each place, the keys that can be taken, those let go first in front,
--                                            each after its score; at most `count`
--   dead       limit, start, stop            address and record of dead letters in the order of their addresses

local answer = {now}
local ask = {}
local looks = {}

local function values(kind)
  for i = 2, #ask do
    answer[i] = call('GET', base .. kind .. ask[i]) or ''
  end
end

function looks.records()
  values('r')
end

function looks.documents()
  values('v')
end

function looks.key()
  for _, place in ipairs(call('SMEMBERS', base .. 'n')) do
    local r, value = find(place .. ask[2])
    if r then
      answer[#answer + 1] = place
      answer[#answer + 1] = value
    end
  end
end

function looks.waiting()
  for i = 3, #ask do
    local found = call('ZRANGEBYSCORE', base .. 'w' .. ask[i], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ask[2])
    answer[i - 1] = found
  end
end

-- Those that have expired stay in the list until a burial clears them out, so it may take several reads.
function looks.dead()
  local left, start = tonumber(ask[2]), ask[3]
  while left > 0 do
    local found = call('ZRANGEBYLEX', base .. 'd', start, ask[4], 'LIMIT', 0, 100)
    for _, where in ipairs(found) do
      local r, value = find(where)
      if r and left > 0 then
        answer[#answer + 1] = where
        answer[#answer + 1] = value
        left = left - 1
      end
    end
    if #found < 100 then
      break
    end
    start = '(' .. found[#found]
  end
end

local at = 1
while at <= #batch do
  local length
  length, at = struct.unpack('>I4', batch, at)
  ask[#ask + 1], at = cut(at, length)
end
looks[ask[1]]()
return answer
