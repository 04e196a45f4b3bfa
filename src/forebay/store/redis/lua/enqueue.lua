-- Enqueue: a batch, and its payloads.
local before = answered()
if before then
  return before
end
local plan, refusal = planned(decode(ARGV[3]), 4)
if not plan then
  return refusal
end
if accept(plan) then
  tell('enqueue')
end
finish()
return answer(receipts_of(plan))
