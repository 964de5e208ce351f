-- Append blocks of rows to the journal. All keys have the same hash tag, so they are in one slot of a cluster.
--
-- KEYS: rows, terms, payloads, labels, shapes, hours, secret
-- ARGV: prefix of the other keys, secret of the leaf hashes or nothing, writer or nothing, number of the batch, a random
--   value; number of blocks, number of counts, number of labels, number of shapes; then
--   for each block: milliseconds and sequence of the first row, distance of the last row, content, hashes of the terms,
--     number of labels, number of payloads, labels, and for each payload: distance of its row, payload
--   for each count: hour, field, events
--   for each label and each shape: id, content
-- A distance is the difference of the ids of a row and of the first row of its block.
--
--   rows      stream: a = id of the first row, r = content of the block. The id of an entry is the id of its last row.
--   terms     stream: a = id of the first row, h = hashes. The ids are those of rows.
--   payloads  stream: p = payload. The id of an entry is the id of its row.
--   labels, shapes  hash: content by id. The field '' of shapes has a random value, which changes if the shapes were
--     deleted.
--   batch:WRITER    string: number of the last batch of this writer. It expires after a day.
--   hours     sorted set: the hours that have counts
--   counts:HOUR   hash: events by MINUTE:LABEL, and all events of the hour
--   minutes:LABEL sorted set: the minutes of the blocks that have rows with this label
local SEQUENCES = 2048000 -- sequence numbers in a millisecond: 1,000 microseconds with 2,048 ids each
local prefix, secret, writer, batch = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local blocks, counts, labels, shapes = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local at = 10

-- If the server lost its data, the secret is stored again. Another secret is that of another journal.
if secret ~= '' and not redis.call('SET', KEYS[7], secret, 'NX') and redis.call('GET', KEYS[7]) ~= secret then
    return false
end
redis.call('HSETNX', KEYS[5], '', ARGV[5])
local answer = redis.call('HGET', KEYS[5], '')
if writer ~= '' then
    local last = redis.call('GET', prefix .. 'batch:' .. writer)
    if last and tonumber(last) >= batch then
        return answer -- the reply to an earlier call with this batch was late or lost
    end
end

local last_ms, last_sequence = 0, 0
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if newest then
    local ms, sequence = string.match(newest[1], '(%d+)-(%d+)')
    last_ms, last_sequence = tonumber(ms), tonumber(sequence)
end

local function add(ms, sequence, distance)
    sequence = sequence + distance
    return ms + math.floor(sequence / SEQUENCES), sequence % SEQUENCES
end

local function id_of(ms, sequence)
    return string.format('%.0f-%.0f', ms, sequence)
end

for _ = 1, blocks do
    local ms, sequence = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    if ms < last_ms or (ms == last_ms and sequence <= last_sequence) then
        ms, sequence = add(last_ms, last_sequence, 1)
    end
    local first = id_of(ms, sequence)
    last_ms, last_sequence = add(ms, sequence, tonumber(ARGV[at + 2]))
    local id = id_of(last_ms, last_sequence)
    redis.call('XADD', KEYS[1], id, 'a', first, 'r', ARGV[at + 3])
    redis.call('XADD', KEYS[2], id, 'a', first, 'h', ARGV[at + 4])
    local names, payloads = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
    local minute = math.floor(last_ms / 60000)
    at = at + 7
    for _ = 1, names do
        redis.call('ZADD', prefix .. 'minutes:' .. ARGV[at], minute, minute)
        at = at + 1
    end
    for _ = 1, payloads do
        redis.call('XADD', KEYS[3], id_of(add(ms, sequence, tonumber(ARGV[at]))), 'p', ARGV[at + 1])
        at = at + 2
    end
end
for _ = 1, counts do
    redis.call('HINCRBY', prefix .. 'counts:' .. ARGV[at], ARGV[at + 1], ARGV[at + 2])
    redis.call('HINCRBY', prefix .. 'counts:' .. ARGV[at], 'all', ARGV[at + 2])
    redis.call('ZADD', KEYS[6], ARGV[at], ARGV[at])
    at = at + 3
end
for _ = 1, labels do
    redis.call('HSETNX', KEYS[4], ARGV[at], ARGV[at + 1])
    at = at + 2
end
for _ = 1, shapes do
    redis.call('HSET', KEYS[5], ARGV[at], ARGV[at + 1])
    at = at + 2
end
if writer ~= '' then
    redis.call('SET', prefix .. 'batch:' .. writer, ARGV[4], 'EX', 86400)
end
return answer
