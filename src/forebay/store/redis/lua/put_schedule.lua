-- Create or edit a schedule: name, body, its next slot, whether it is paused. What it last became stays.
local known = call('HGET', P .. 'schedules', ARGV[3])
known = known and decode(known)
local last_job = known and known[4] or false
local kept = { ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1', last_job }
if not known or pack(known) ~= pack(kept) then
  call('HSET', P .. 'schedules', ARGV[3], pack(kept))
  tell('put_schedule', nil, ARGV[3])
end
finish()
return 1
