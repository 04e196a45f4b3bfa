-- Sorted sets of which mostly the first member matters, read in pages and written in the end: what is added and removed
-- again within a call costs nothing. Code that reads such a set by another way calls `order.write` first.
-- needs: jobs

local order = {}

(function()
  local PAGE = 128
  local known = {}

  local function at(key)
    known[key] = known[key] or { added = {}, removed = {} }
    return known[key]
  end

  -- Where a member is in a list, or belongs.
  local function index_in(list, member)
    return lower_bound(1, #list + 1, function(i) return list[i] < member end)
  end

  function order.write(key)
    local o, gone, new = at(key), {}, {}
    for member in pairs(o.removed) do
      gone[#gone + 1] = member
    end
    for member in pairs(o.added) do
      new[#new + 1], new[#new + 2] = 0, member
    end
    call_all('ZREM', key, gone)
    call_all('ZADD', key, new)
    o.added, o.removed = {}, {}
  end

  function order.write_all()
    for key in pairs(known) do
      order.write(key)
    end
  end

  function order.first(key)
    local o = at(key)
    if not o.list or #o.list == 0 and not o.whole then
      order.write(key)
      o.list = call('ZRANGE', key, 0, PAGE - 1)
      o.whole = #o.list < PAGE
    end
    return o.list[1]
  end

  function order.add(key, member)
    local o = at(key)
    local list = o.list
    o.added[member], o.removed[member] = not o.removed[member] or nil, nil
    if list and (o.whole or #list > 0 and member < list[#list]) then
      table.insert(list, index_in(list, member), member)
      if #list > 2 * PAGE then
        list[#list], o.whole = nil, false
      end
    end
  end

  function order.remove(key, member)
    local o = at(key)
    local list, i = o.list or NOTHING, 1
    o.removed[member], o.added[member] = not o.added[member] or nil, nil
    i = list[1] == member and 1 or index_in(list, member)
    if list[i] == member then
      table.remove(list, i)
    end
  end
end)()
