-- Forget a schedule but for its last slot: name.
local before = answered()
if before then
  return before[1]
end
local dropped = call('HDEL', P .. 'schedules', ARGV[3])
if dropped == 1 then
  tell('drop_schedule', nil, ARGV[3])
end
finish()
return answer({ dropped })[1]
