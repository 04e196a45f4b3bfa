-- Leases: extend them, find those past their time, report progress, read cancel requests.

-- verb: extend (needs maintain)
-- Extend: the new length, then pairs of a delivery and the ids that are held in it. The survivors, as they are now.
local till, known, sids, blobs, records, seen = now + tonumber(ARGV[3]), {}, {}, {}, {}, {}
for _, group in ipairs(decode(ARGV[4])) do
  local delivery, held = unpack(group)
  local found = fetch(held)
  for i, sid in ipairs(held) do
    local r = found[i] and record(found[i])
    if r and not seen[sid] and r[STATE] == RUNNING and r[DELIVERY] == delivery then
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
  add_leased('extended', sids, records, till)
  set_verb('extend')
  write_all()
end
return jobs_reply(sids, blobs)

-- verb: overdue (reads, needs queues)
-- Overdue: leases past their time, oldest first, so many at most.
local sids = call('ZRANGE', P .. 'lease', '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])
return jobs_reply(sids, fetch(sids))

-- verb: report_progress (needs queues)
-- Report progress: an id, a delivery, a portion and a note each. For each 1: it was current, 0: it is stale.
local replies = {}
for i, each in ipairs(decode(ARGV[3])) do
  local sid, delivery, portion, note = unpack(each)
  local r = fetch_one(sid)
  local current = r and r[STATE] == RUNNING and r[DELIVERY] == delivery
  if current then
    call('HSET', P .. 'progress', sid, pack({ delivery, portion, note, now }))
  end
  replies[i] = current and 1 or 0
end
return replies

-- verb: cancel_requests (reads, needs queues)
-- Running jobs of an owner whose end is requested, some of them: pairs of an id and a delivery.
local sids, reply = call('SRANDMEMBER', P .. 'cancel_requested:' .. ARGV[3], BATCH), {}
for _, sid in ipairs(sids) do
  local r = fetch_one(sid)
  if r and r[STATE] == RUNNING and r[OWNER] == ARGV[3] then
    reply[#reply + 1], reply[#reply + 2] = sid, r[DELIVERY]
  end
end
return reply
