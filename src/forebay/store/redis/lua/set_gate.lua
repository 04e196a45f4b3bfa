-- Give a gate another number of slots: its name, the number or an empty text.
local name, limit = ARGV[3], tonumber(ARGV[4])
if tonumber(call('HGET', P .. 'limits', name)) ~= limit then
  tell('set_gate', nil, name)
end
if limit then
  call('HSET', P .. 'limits', name, limit)
else
  call('HDEL', P .. 'limits', name)
end
local g = find_gate(name)
if g then
  renumbered(g)
end
tend(TEND_LIMIT)
finish()
return 1
