-- take: dispatchers ask for the right to run what a record itself holds.
--
-- Each request is lengths of where and owner, and the lease. Answered are the time and for each request the granted
-- record, or an empty text.

note()
local answer = {now}

local function take(where, owner, lease)
  local r = find(where)
  if not r or not WAITS[r.state] then
    -- The record went without the list being told, by a hand that was not ours; or it would be tried for ever.
    index(where, 'r', nil)
    return ''
  elseif now < r.moment then
    return ''
  end
  local was = r.state
  grant_again(r, owner, lease)
  r.state = 'p'
  return save(where, was, r)
end

local at = 1
while at <= #batch do
  local where, owner, lease
  where, owner, lease, at = struct.unpack('>I4I4I8', batch, at)
  where, at = cut(at, where)
  owner, at = cut(at, owner)
  answer[#answer + 1] = take(where, owner, lease)
end
return answer
