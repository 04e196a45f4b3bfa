-- Own: log, group, member, length of the lease. Number, epoch and position of each partition, and the end of the lease.
local name, group, member, till = ARGV[3], ARGV[4], ARGV[5], now + tonumber(ARGV[6])
local parts, n = log_state(name)
if not parts then
  return { 'kind' }
end
local key, members = group_key(name, group), P .. 'lm:' .. name .. '|' .. group
call('ZADD', P .. 'groups:' .. name, 0, group)
call('HSET', key, 'seen', now)
call('ZADD', members, till, member)
local ends, all, living = {}, call('ZRANGE', members, 0, -1, 'WITHSCORES'), 0
for i = 1, #all, 2 do
  ends[all[i]] = tonumber(all[i + 1])
  living = living + (ends[all[i]] > now and 1 or 0)
end
local share, mine, owners = math.ceil(n / living), 0, {}
for i = 0, n - 1 do
  owners[i] = call('HGET', key, 'member:' .. i)
  if owners[i] == member then
    mine = mine + 1
    if mine > share then
      owners[i] = false
      call('HDEL', key, 'member:' .. i)
    end
  end
end
for i = 0, n - 1 do
  local owner = owners[i]
  local free = not owner or owner ~= member and (ends[owner] or 0) <= now
  if free and mine < share then
    owners[i], mine = member, mine + 1
    call('HSET', key, 'member:' .. i, member)
    call('HINCRBY', key, 'epoch:' .. i, 1)
  end
end
local reply, busy = { 'ok', till }, {}
for i = 0, n - 1 do
  busy[owners[i] or ''] = true
  if owners[i] == member then
    local f = call('HMGET', key, 'epoch:' .. i, 'position:' .. i)
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = i, tonumber(f[1]), tonumber(f[2] or -1)
  end
end
for other, ended in pairs(ends) do
  if ended <= now and not busy[other] then
    call('ZREM', members, other)
  end
end
return reply
