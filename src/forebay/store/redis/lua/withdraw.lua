-- Forget what a worker announced: owner. Whether it was known.
local before = answered()
if before then
  return before[1]
end
local till = tonumber(call('ZSCORE', P .. 'workers_until', ARGV[3]) or 0)
forget_worker(ARGV[3])
return answer({ till > now and 1 or 0 })[1]
