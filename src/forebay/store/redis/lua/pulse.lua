-- When a claim or a reaping may next find something in these queues, and how much their logs ever held.
local grown = 0
local soonest = min(first_score(P .. 'due') or MOST, first_score(P .. 'lease') or MOST)
for _, name in ipairs(decode(ARGV[3])) do
  local l = line(name)
  if l.rule.log then
    grown = grown + appended(name)
  elseif l[READY] > 0 or call('EXISTS', P .. 'po:' .. name) == 1 then
    soonest = min(soonest, l.paused)
  else
    soonest = min(soonest, max(first_score(P .. 'pn:' .. name) or MOST, l.paused))
  end
end
if call('EXISTS', P .. 'opened') == 1 then
  soonest = 0
end
return { soonest, grown }
