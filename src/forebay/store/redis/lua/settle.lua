-- Settle: groups of settlements, then the results that they keep.
local replies = settle(decode(ARGV[3]))
finish()
return replies
