-- Some jobs pass a condition for good: its gate, so many at most. They go on in the lane without it. How many did, and
-- whether that is all: one call meets a bounded number of jobs.
local before = answered()
if before then
  return before
end
local MET, name, most = 100, ARGV[3], tonumber(ARGV[4])
tend(TEND_LIMIT)

local function without(names)
  local others = {}
  for _, each in ipairs(names) do
    if each ~= name then
      others[#others + 1] = each
    end
  end
  return #others > 0 and others or nil
end

local released, met = 0, 0
while released < most and met < MET do
  local member = order.first(P .. 'lanes:' .. name)
  local sid = member and sub(member, 21, 36)
  local r = sid and fetch_one(sid)
  if not r then
    break
  end
  if (more(r).expires or MOST) <= now then
    bury(sid, r, OUT_OF_TIME, 'expired')
  else
    local is = edited(r)
    is[MORE].gates = without(more(r).gates)
    move(sid, r, is)
    released = released + 1
  end
  met = met + 1
  refresh_lanes()
end
if released > 0 then
  tell('release', nil, name)
end
finish()
return answer({ released, (released == most or met < MET) and 1 or 0 })
