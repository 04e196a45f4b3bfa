-- Ingest: a source, its checkpoint before or empty, its checkpoint after, a batch, its payloads.
local before = answered()
if before then
  return before
end
if (call('HGET', P .. 'sources', ARGV[3]) or '') ~= ARGV[4] then
  return { 'moved' }
end
local plan, refusal = accept_batch(6)
if not plan then
  return refusal
end
call('HSET', P .. 'sources', ARGV[3], ARGV[5])
call('ZADD', P .. 'sources_at', now, ARGV[3])
finish()
return answer(receipts_of(plan))
