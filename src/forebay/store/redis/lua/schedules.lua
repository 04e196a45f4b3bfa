-- Every schedule: body, next slot, last slot or empty, last job or empty.
local reply, all = {}, call('HGETALL', P .. 'schedules')
for i = 1, #all, 2 do
  local body, next_at, _, job = unpack(decode(all[i + 1]))
  reply[#reply + 1] = { body, next_at, call('HGET', P .. 'ticks', all[i]) or '', job or '' }
end
return reply
