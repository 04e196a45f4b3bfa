-- Overdue: leases past their time, oldest first, so many at most.
local sids = call('ZRANGE', P .. 'lease', '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])
return pictures(sids, fetch(sids))
