-- swap: documents are replaced if their version is unchanged.
--
-- Each request is lengths of where and body, version, retention. Answered is a digit for each.

note()

local function version_of(key)
  local value = call('GET', key)
  if value then
    local version, expires = struct.unpack('>I7I7', value)
    return now < expires and version or 0
  end
  return 0
end

local function swap(where, body, expected, retention)
  local key = base .. 'v' .. where
  local version = version_of(key)
  if version ~= expected then
    return '0'
  end
  local fresh, expires = version > 0 and version + 1 or now, now + retention
  write(key, struct.pack('>I7I7', fresh, expires) .. body, expires)
  return '1'
end

local answers = {}
local at = 1
while at <= #batch do
  local where, body, expected, retention
  where, body, expected, retention, at = struct.unpack('>I4I4i8I8', batch, at)
  where, at = cut(at, where)
  body, at = cut(at, body)
  answers[#answers + 1] = swap(where, body, expected, retention)
end
return table.concat(answers)
