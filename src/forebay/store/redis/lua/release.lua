-- Let some pass a condition: its gate, so many at most. They take no slot of it and are never held by it again.
local before = answered()
if before then
  return before[1]
end
local name, most = ARGV[3], tonumber(ARGV[4])
tend(TEND_LIMIT)

local function without(stamps)
  local others = {}
  for _, stamp in ipairs(stamps) do
    if stamp[NAME] ~= name then
      others[#others + 1] = stamp
    end
  end
  return #others > 0 and others or nil
end

local released = 0
for _, place in ipairs(call('ZRANGE', P .. 'gp:' .. name, 0, most - 1)) do
  local sid = sub(place, 21)
  local r = fetch_one(sid)
  if (more(r).expires or MOST) > now then
    local is, g = edited(r), unpark(r)
    open_again(g)
    is[MORE].gates = without(more(r).gates)
    is[MORE].gate = nil
    is[MORE].gate = is[MORE].gates and admit(sid, is) or nil
    is[STATE] = is[MORE].gate and WAITING or READY
    move(sid, r, is)
    released = released + 1
  end
end
if released > 0 then
  open_gates(TEND_LIMIT)
  tell('release', nil, name)
end
finish()
return answer({ released })[1]
