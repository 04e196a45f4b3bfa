-- Disown: log, group, member. How many partitions are free now; -1: there is no such log.
local before = answered()
if before then
  return before[1]
end
local _, n = log_state(ARGV[3])
if not n then
  return -1
end
local key, freed = group_key(ARGV[3], ARGV[4]), 0
for i = 0, n - 1 do
  if call('HGET', key, 'member:' .. i) == ARGV[5] then
    call('HDEL', key, 'member:' .. i)
    freed = freed + 1
  end
end
call('ZREM', P .. 'lm:' .. ARGV[3] .. '|' .. ARGV[4], ARGV[5])
return answer({ freed })[1]
