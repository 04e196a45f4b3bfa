-- When a claim or a reaping may next find something in these queues, and how much their logs ever held.
local grown = 0
local soonest = min(first_score(P .. 'due') or MOST, first_score(P .. 'lease') or MOST)
for _, name in ipairs(decode(ARGV[3])) do
  local q = queue_of(name)
  if q.rule.log then
    grown = grown + appended(name)
  elseif q[READY] > 0 then
    soonest = min(soonest, max(workable_at(q), q.paused))
  end
end
return { soonest, grown }
