-- Dead jobs give way to new ones: ids, a batch with one draft for each, its payloads. The ids that did, and receipts.
local before = answered()
if before then
  return before
end
local sids, only, going, seen = decode(ARGV[3]), {}, {}, {}
for i, sid in ipairs(sids) do
  local r = not seen[sid] and fetch_one(sid)
  if r and r[STATE] == DEAD then
    only[i], seen[sid] = true, true
    going[#going + 1] = sid
  end
end
local plan, refusal = planned(decode(ARGV[4]), 5, only)
if not plan then
  return refusal
end
forget_all(going)
accept(plan)
if #going > 0 then
  tell('replace_dead')
end
finish()
return answer({ 'ok', receipts_of(plan), going })
