-- Give a gate another number of slots: its name, the number or an empty text.
local name, limit = ARGV[3], tonumber(ARGV[4])
local state = state_of(name)
if state.given ~= limit then
  tell('set_gate', nil, name)
end
if limit then
  call('HSET', P .. 'limits', name, limit)
else
  call('HDEL', P .. 'limits', name)
end
state.given, state.changed, state.moved = limit, true, true
finish()
return 1
