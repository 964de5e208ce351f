-- Copy entries of a stream, for a copy that replaces the stream. Redis cannot change an entry of a stream.
--
-- KEYS: lock, stream, copy
-- ARGV: token of the lock, milliseconds until lock and copy expire, start and end of the range, largest number of
--   entries to copy; then the id and the fields of an entry that follows the range, or nothing
--
-- The answer is the id of the last entry that was copied, if there may be more entries in the range. When the range is
-- copied, the answer is empty. If the range ends with the stream, the copy then replaces the stream in the same step, so
-- no new entry is lost. The copy expires, so an interrupted erasure leaves nothing behind.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return redis.error_reply('ERR the erasure took too long and lost its lock; run it again')
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local most = tonumber(ARGV[5])
local entries = redis.call('XRANGE', KEYS[2], ARGV[3], ARGV[4], 'COUNT', most)
for _, entry in ipairs(entries) do
    redis.call('XADD', KEYS[3], entry[1], unpack(entry[2]))
end
local answer = ''
if #entries == most then
    answer = entries[most][1]
elseif ARGV[4] == '+' then
    if redis.call('EXISTS', KEYS[3]) == 1 then
        redis.call('RENAME', KEYS[3], KEYS[2])
        redis.call('PERSIST', KEYS[2])
    else
        redis.call('DEL', KEYS[2])
    end
    return answer
elseif ARGV[6] then
    redis.call('XADD', KEYS[3], unpack(ARGV, 6))
end
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return answer
