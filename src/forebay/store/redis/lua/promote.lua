-- Promote: so many at most. How many became ready, and when the next one is due, or an empty text.
local limit = tonumber(ARGV[3])
local ready = tend(limit, limit)
sweep_keys(limit)
sweep_rates(limit)
trim_ledger(read_rule(), limit)
keep_windows(limit)
sweep_sources(limit)
streams.sweep(limit)
finish()
local due, opens = first_score(P .. 'due'), first_score(P .. 'openings')
local soonest = min(due or MOST, opens or MOST)
return { ready, soonest < MOST and soonest or '' }
