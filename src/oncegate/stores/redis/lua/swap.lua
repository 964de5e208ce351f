-- swap: replace documents that have the expected version.
--
-- A request has the lengths of address and body, the expected version and the retention; then address and body. The
-- answer is a digit for each request: 1, or 0 if the document has another version.

store_time()

local function version_of(key)
  local value = call('GET', key)
  if value then
    local version, expires = struct.unpack('>I7I7', value)
    return now < expires and version or 0
  end
  return 0
end

local function swap(address, body, expected, retention)
  local key = base .. 'v' .. address
  local version = version_of(key)
  if version ~= expected then
    return '0'
  end
  local next_version, expires = version > 0 and version + 1 or now, now + retention
  write(key, struct.pack('>I7I7', next_version, expires) .. body, expires)
  return '1'
end

local answers = {}
local at = 1
while at <= #batch do
  local address, body, expected, retention
  address, body, expected, retention, at = struct.unpack('>I4I4i8I8', batch, at)
  address, at = cut(at, address)
  body, at = cut(at, body)
  answers[#answers + 1] = swap(address, body, expected, retention)
end
return table.concat(answers)
