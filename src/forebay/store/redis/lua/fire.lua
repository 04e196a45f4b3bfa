-- Take a slot and enqueue its job in one step: name, tick, next slot, a batch or an empty text, and its payloads.
local before = answered()
if before then
  return before
end
local name, tick, next_at = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local known = call('HGET', P .. 'schedules', name)
known = known and decode(known)
if not known or known[3] or known[2] ~= tick or tick <= tonumber(call('HGET', P .. 'ticks', name) or -1) then
  return { 'taken' }
end
if ARGV[6] ~= '' then
  local plan, refusal = planned(decode(ARGV[6]), 7)
  if not plan then
    return refusal
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
tell('fire', nil, name, tick)
finish()
return answer({ 'ok' })
