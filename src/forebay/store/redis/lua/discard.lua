-- Discard: ids. The dead among them are forgotten; those.
local before = answered()
if before then
  return before
end
local going, seen = {}, {}
for _, sid in ipairs(decode(ARGV[3])) do
  local r = not seen[sid] and fetch_one(sid)
  if r and r[STATE] == DEAD then
    going[#going + 1], seen[sid] = sid, true
  end
end
forget_all(going)
if #going > 0 then
  tell('purge')
end
finish()
return answer(going)
