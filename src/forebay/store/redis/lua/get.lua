-- Get: ids. Those that exist.
local sids = decode(ARGV[3])
return pictures(sids, fetch(sids), true)
