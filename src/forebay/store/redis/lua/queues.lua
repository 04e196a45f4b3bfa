-- Queues by name: the name to go on after, so many at most, how names begin. Name and jobs by state of each.
local reply, after, limit, prefix = {}, ARGV[3], tonumber(ARGV[4]), ARGV[5]
local first = after < prefix and '[' .. prefix or after == '' and '-' or '(' .. after
local last = prefix == '' and '+' or '(' .. prefix .. '\255'
for _, name in ipairs(call('ZRANGE', P .. 'queues', first, last, 'BYLEX', 'LIMIT', 0, limit)) do
  reply[#reply + 1] = { name, unpack(call('HMGET', P .. 'q:' .. name, 'waiting', 'ready', 'running', 'done', 'dead', 'cancelled')) }
end
return reply
