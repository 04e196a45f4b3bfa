-- Create or edit a schedule: name, body, its next slot, whether it is paused, its rule and zone. What it last became
-- stays, and so does its next slot unless rule or zone change, it is resumed, or that slot was taken (`core.schedule`).
local known = call('HGET', P .. 'schedules', ARGV[3])
known = known and decode(known)
local next_at, paused, last_job = tonumber(ARGV[5]), ARGV[6] == '1', false
if known then
  last_job = known[4]
  local free = known[2] > tonumber(call('HGET', P .. 'ticks', ARGV[3]) or -1)
  if known[5] == ARGV[7] and free and (paused or not known[3]) then
    next_at = known[2]
  end
end
local kept = { ARGV[4], next_at, paused, last_job, ARGV[7] }
if not known or pack(known) ~= pack(kept) then
  call('HSET', P .. 'schedules', ARGV[3], pack(kept))
  tell('put_schedule', nil, ARGV[3])
end
finish()
return 1
