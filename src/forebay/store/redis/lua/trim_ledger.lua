-- Drop entries that the rule no longer keeps, so many at most; how many.
local before = answered()
if before then
  return before[1]
end
return answer({ trim_ledger(read_rule(), tonumber(ARGV[3])) })[1]
