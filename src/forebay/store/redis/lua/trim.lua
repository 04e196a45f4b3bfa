-- Trim a log: entries before an instant, so many at most. How many; -1: it is none.
local before = answered()
if before then
  return before[1]
end
if not log_state(ARGV[3]) then
  return -1
end
return answer({ drop_before(ARGV[3], tonumber(ARGV[4]), NOTHING, tonumber(ARGV[5])) })[1]
