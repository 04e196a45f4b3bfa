-- Schedules, and taking a slot together with the job that it becomes.

-- verb: put_schedule (grows, needs maintain)
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
  set_verb('put_schedule', nil, ARGV[3])
end
write_all()
return 1

-- verb: drop_schedule (once, needs maintain)
-- Delete a schedule but for its last slot: name.
local dropped = call('HDEL', P .. 'schedules', ARGV[3])
if dropped == 1 then
  set_verb('drop_schedule', nil, ARGV[3])
end
write_all()
return dropped

-- verb: schedules (reads, needs queues)
-- Every schedule: body, next slot, last slot or empty, last job or empty.
local reply, all = {}, call('HGETALL', P .. 'schedules')
for i = 1, #all, 2 do
  local body, next_at, _, job = unpack(decode(all[i + 1]))
  reply[#reply + 1] = { body, next_at, call('HGET', P .. 'ticks', all[i]) or '', job or '' }
end
return reply

-- verb: fire (grows, once, needs intake)
-- Take a slot and enqueue its job in one step: name, tick, next slot, a batch or an empty text, and its payloads.
local name, tick, next_at = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local known = call('HGET', P .. 'schedules', name)
known = known and decode(known)
if not known or known[3] or known[2] ~= tick or tick <= tonumber(call('HGET', P .. 'ticks', name) or -1) then
  return { 'taken' }, REFUSED
end
if ARGV[6] ~= '' then
  local plan, refusal = plan_intake(decode(ARGV[6]), 7)
  if not plan then
    return refusal, REFUSED
  end
  accept(plan)
  local became
  for _, receipt in ipairs(plan.receipts) do
    if receipt[3] ~= DUPLICATE and (not became or became[3] == MERGED and receipt[3] == NEW) then
      became = receipt
    end
  end
  known[4] = became and became[1] or known[4]
end
known[2] = next_at
call('HSET', P .. 'schedules', name, pack(known))
call('HSET', P .. 'ticks', name, tick)
set_verb('fire', nil, name, tick)
write_all()
return { 'ok' }
