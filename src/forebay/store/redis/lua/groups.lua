-- How groups stand: log, the name to go on after, so many at most. For each partition of each: group, number, position,
-- lag, lost, when it loses the first it has not had, when it was seen, member, epoch, until; empty texts for none.
local name = ARGV[3]
local parts, n = log_state(name)
if not parts then
  return { 'kind' }
end
local window, reply = queue_of(name).rule.log.window, { 'ok' }
local from = ARGV[4] == '' and '-' or '(' .. ARGV[4]
for _, group in ipairs(call('ZRANGE', P .. 'groups:' .. name, from, '+', 'BYLEX', 'LIMIT', 0, ARGV[5])) do
  local key = group_key(name, group)
  for i = 0, n - 1 do
    local part = parts[i]
    local f = call('HMGET', key, 'position:' .. i, 'lost:' .. i, 'seen', 'member:' .. i, 'epoch:' .. i)
    local position = tonumber(f[1] or -1)
    local following = max(part.first, position + 1)
    local loses = window and following < part.next and entry_at(name, i, following) + window or ''
    local till = f[4] and tonumber(call('ZSCORE', P .. 'lm:' .. name .. '|' .. group, f[4])) or ''
    reply[#reply + 1] = {
      group, i, position, part.next - following, tonumber(f[2] or 0), loses, tonumber(f[3]), f[4] or '',
      tonumber(f[5] or 0), till,
    }
  end
end
return reply
