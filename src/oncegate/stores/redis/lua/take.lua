-- take: grant a dispatcher the right to run an event whose payload is in the record.
--
-- A request has the lengths of address and owner, and the lease; then address and owner. The answer is the time, and
-- for each request the granted record or an empty string.

store_time()
local answer = {now}

local function take(address, owner, lease)
  local r = find(address)
  if not r or not WAITS[r.state] then
    -- Another program has deleted the record. Remove the key from the list. Otherwise dispatchers would try to take the
    -- record forever.
    update_lists(address, 'r', nil)
    return ''
  elseif now < r.moment then
    return ''
  end
  local before = r.state
  grant_again(r, owner, lease)
  r.state = 'p'
  return save(address, before, r)
end

local at = 1
while at <= #batch do
  local address, owner, lease
  address, owner, lease, at = struct.unpack('>I4I4I8', batch, at)
  address, at = cut(at, address)
  owner, at = cut(at, owner)
  answer[#answer + 1] = take(address, owner, lease)
end
return answer
