-- Commit: log, group, number, offset, whether it may go back, the epoch or an empty text. The place, or what is wrong.
local before = answered()
if before then
  return before
end
local name, group, number, offset, epoch = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local parts, n = log_state(name)
if not parts then
  return { 0, 'log' }
elseif not parts[number] then
  return { n - 1, 'partition' }
elseif offset < -1 or offset >= parts[number].next then
  return { parts[number].next - 1, 'offset' }
end
local key = group_key(name, group)
local f = call('HMGET', key, 'position:' .. number, 'member:' .. number, 'epoch:' .. number)
if epoch and (not f[2] or tonumber(f[3]) ~= epoch) then
  return { 0, 'lost' }
end
local position = ARGV[7] == '1' and offset or max(tonumber(f[1] or -1), offset)
call('ZADD', P .. 'groups:' .. name, 0, group)
call('HSET', key, 'position:' .. number, position, 'seen', now)
return answer({ position, '' })
