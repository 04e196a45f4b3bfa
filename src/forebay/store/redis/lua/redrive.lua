-- Redrive: ids. The dead among them live again, at home, due now, with all lives back; those, or why none of them.
local before = answered()
if before then
  return before
end
local arrivals, found, seen = {}, {}, {}
for _, sid in ipairs(decode(ARGV[3])) do
  local r = not seen[sid] and fetch_one(sid)
  if r and r[STATE] == DEAD then
    local home = more(r).home or r[QUEUE]
    arrivals[home] = (arrivals[home] or 0) + 1
    found[#found + 1] = { sid, r, home }
    seen[sid] = true
  end
end
for queue, arriving in pairs(arrivals) do
  local q = queue_of(queue)
  if q.rule.limit and depth(q) + arriving > q.rule.limit then
    return { 'full', queue, depth(q), q.rule.limit, arriving }
  end
end
local reply = { 'ok' }
for _, each in ipairs(found) do
  local sid, r, home = unpack(each)
  local is = edited(r)
  local m = is[MORE]
  is[STATE], is[QUEUE], is[ATTEMPT], is[DUE] = WAITING, home, 0, now
  is[RANK] = rank_at(m.base or ZERO, r[TIMED], now)
  m.home, m.kept, m.finished, m.asked, m.expires = nil, nil, nil, nil, nil
  m.sheds = marks_shed(queue_of(home))
  m.behind = m.line and true or nil
  move(sid, r, is)
  told_plain('redriven', sid, home, r, now)
  reply[#reply + 1] = sid
end
if #found > 0 then
  tell('redrive')
  tend(TEND_LIMIT)
end
finish()
return answer(reply)
