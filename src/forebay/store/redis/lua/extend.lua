-- Extend: the new length, then pairs of a delivery and the ids that are held in it. The survivors, as they are now.
local till, known, sids, blobs, records, seen = now + tonumber(ARGV[3]), {}, {}, {}, {}, {}
for _, group in ipairs(decode(ARGV[4])) do
  local found = fetch(group[2])
  for i, sid in ipairs(group[2]) do
    local r = found[i] and record(found[i])
    if r and not seen[sid] and r[STATE] == RUNNING and r[DELIVERY] == group[1] then
      local c = known[found[i]]
      if not c then
        local is = edited(r)
        is[UNTIL] = till
        c = { is = is, blob = encoded(is) }
        known[found[i]] = c
      end
      seen[sid] = true
      sids[#sids + 1], blobs[#blobs + 1], records[#records + 1] = sid, c.blob, c.is
      call('ZADD', P .. 'lease', till, sid)
    end
  end
end
if #sids > 0 then
  store('j', sids, blobs)
  told_runs('extended', sids, records, till)
  tell('extend')
  finish()
end
return pictures(sids, blobs)
