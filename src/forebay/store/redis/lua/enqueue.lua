-- Enqueue: a batch, and its payloads.
local before = answered()
if before then
  return before
end
local plan, refusal = accept_batch(3)
if not plan then
  return refusal
end
finish()
return answer(receipts_of(plan))
