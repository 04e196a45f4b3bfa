-- Claims: the smallest places of a queue straight from its set, as many as the gates of the whole queue admit; where the
-- queue has lanes, head by head (lanes.lua).
-- needs: maintain

local claim, claimed_before

(function()
  local WANT_QUEUE, WANT_COUNT, WANT_CLASS = 1, 2, 3

  -- The record of a claimed job; equal records are computed once a call.
  local function running_record(known, blob, owner, till)
    local r = record(blob)
    local is, m = edited(r), more(r)
    is[STATE], is[ATTEMPT], is[DELIVERY] = RUNNING, r[ATTEMPT] + 1, r[DELIVERY] + 1
    is[OWNER], is[CLAIMED], is[UNTIL], is[MORE].merges = owner, now, till, nil
    local c = { r = r, is = is, n = 0, odd = is_odd(r), unclaimed = m.expires or m.sheds, merges = m.merges and m.subject }
    c.plain = not (c.unclaimed or c.merges)
    c.blob = encoded(is)
    known[blob] = c
    return c
  end

  local function unindex(sid, c)
    if c.unclaimed then
      index_unclaimed(sid, c.r, false)
    end
    if c.merges and call('HGET', P .. 'fresh:' .. c.r[QUEUE], c.merges) == sid then
      call('HDEL', P .. 'fresh:' .. c.r[QUEUE], c.merges)
    end
  end

  -- The next jobs of the set without class and gates leave it, or the stream: ids and records.
  local function pop_next(q, most, owner)
    if not q.tail then
      local sids = pop_ready(q, most)
      return sids, fetch(sids)
    end
    local sids, blobs, before = nil, nil, {}
    if q.streamed > 0 then
      sids, blobs = pop_ready_and_streamed(q, most, owner)
      if blobs then
        return sids, blobs
      end
    else
      sids = pop_ready(q, most)
    end
    blobs = fetch(sids)
    for i = 1, #sids do
      local r = record(blobs[i])
      if r[DELIVERY] > 0 and more(r).flow then
        before[#before + 1] = entry_id(sids[i], r[MORE].flow)
      end
    end
    if #before > 0 and not reclaim_entries(q, owner, before) then
      blobs = fetch(sids)
      for i = 1, #sids do
        call('ZREM', P .. 'r:' .. q.name .. '|', record(blobs[i])[RANK] .. sids[i])
      end
    end
    return sids, blobs
  end

  -- Jobs become running; their new records.
  local function start_jobs(sids, blobs, owner, till)
    local known, leases, records, odd = {}, {}, {}, {}
    for i = 1, #sids do
      local sid, c = sids[i], known[blobs[i]] or running_record(known, blobs[i], owner, till)
      c.n = c.n + 1
      odd[#odd + 1] = c.odd and sid or nil
      if not c.plain then
        unindex(sid, c)
      end
      blobs[i], records[i] = c.blob, c.is
      leases[2 * i - 1], leases[2 * i] = till, sid
    end
    if #odd > 0 then
      call('ZREM', P .. 'odd:' .. records[1][QUEUE], unpack(odd))
    end
    add_leased('claimed', sids, records, till)
    for _, c in pairs(known) do
      count(c.r, -c.n)
      count(c.is, c.n)
    end
    call('ZADD', P .. 'lease', unpack(leases))
    store('j', sids, blobs)
  end

  -- The first jobs of a queue without lanes.
  local function first_jobs(q, most)
    local places = call('ZRANGE', P .. 'r:' .. q.name .. '|', 0, most - 1)
    for _, entry in ipairs(q.streamed > 0 and streams.unread(q, most) or NOTHING) do
      places[#places + 1] = streams.place(entry)
    end
    table.sort(places)
    for i = 1, #places do
      places[i] = sub(places[i], SID_IN_PLACE)
    end
    return places
  end

  -- How many of the next jobs the gates of the whole queue admit; they have taken their slots.
  local function admitted(q, most)
    local whole, n = q.rule.whole, 0
    for _, gate in ipairs(whole or NOTHING) do
      most = max(0, min(most, room_of(gate)))
    end
    if not whole or most == 0 then
      return most
    end
    for _, blob in ipairs(fetch(first_jobs(q, most))) do
      local cost = blob and cost_of(record(blob))
      if not blob or n == most or closed_of(whole, cost) then
        break
      end
      use_gates(q, record(blob))
      n = n + 1
    end
    return n
  end

  -- The head of a lane is taken: the place behind it. Places are read in pages, and what was taken of a lane leaves its set
  -- in the end.
  local function next_of_lane(q, lane, most, taken)
    local t = taken[lane]
    if not t or not t.places[t.n + 2] and not t.whole then
      local page, from = floor(most / q.lanes) + 2, t and t.n or 0
      local places = call('ZRANGE', P .. 'r:' .. q.name .. '|' .. lane.key, from, from + page - 1)
      t = t or { places = {}, n = 0 }
      for i, place in ipairs(places) do
        t.places[from + i] = place
      end
      t.whole, taken[lane] = #places < page, t
    end
    t.n = t.n + 1
    return t.places[t.n + 1]
  end

  -- The next jobs of a queue with lanes, of one class if it is named; ids and records.
  local function take(q, most, only, owner)
    local sids, blobs, met, taken = {}, {}, 0, {}
    while #sids < most and met < LANES_MET do
      local lane = first(q, only)
      local sid = lane and sub(lane.place, SID_IN_PLACE)
      local blob = sid and call('HGET', P .. 'j:' .. sub(sid, 1, BUCKET_END), sid)
      local cost = blob and cost_of(record(blob))
      if not blob or closed_of(q.rule.whole, cost) then
        break
      end
      local closed = closed_gate(q, lane, cost)
      if closed then
        park(q, lane, closed)
        met = met + 1
      elseif lane.key == '' then
        local some, records = pop_next(q, 1, owner)
        start(q, lane, record(records[1]), streams.head(q, ''), only)
        sids[#sids + 1], blobs[#blobs + 1] = some[1], records[1]
      else
        start(q, lane, record(blob), next_of_lane(q, lane, most, taken), only)
        sids[#sids + 1], blobs[#blobs + 1] = sid, blob
      end
    end
    for lane, t in pairs(taken) do
      call('ZREM', P .. 'r:' .. q.name .. '|' .. lane.key, unpack(t.places, 1, t.n))
    end
    return sids, blobs
  end

  -- The next jobs of a queue: a queue, how many, a class or false.
  local function claim_queue(want, owner, till)
    local q, sids, blobs = queue_of(want[WANT_QUEUE]), NOTHING, NOTHING
    if q.paused > now or q[READY] == 0 then
      return sids, blobs
    end
    if q.scan then
      review(q)
    end
    if q.lanes > 0 then
      sids, blobs = take(q, want[WANT_COUNT], want[WANT_CLASS] or nil, owner)
    elseif not want[WANT_CLASS] or want[WANT_CLASS] == '' then
      local n = admitted(q, want[WANT_COUNT])
      if n > 0 then
        sids, blobs = pop_next(q, n, owner)
      end
    end
    if #sids > 0 then
      start_jobs(sids, blobs, owner, till)
    end
    q.starting = 0
    return sids, blobs
  end

  -- Claim what is wanted; ids and records of what was claimed.
  function claim(wants, owner, length)
    local total, all, records = 0, {}, {}
    for _, want in ipairs(wants) do
      total = total + want[WANT_COUNT]
    end
    local _, through = maintain(total + MAINTAIN_LIMIT)
    if not through then
      return all, records
    end
    for _, want in ipairs(wants) do
      local sids, blobs = claim_queue(want, owner, now + length)
      for i = 1, #sids do
        all[#all + 1], records[#records + 1] = sids[i], blobs[i]
      end
    end
    if #all > 0 then
      set_verb('claim', owner)
    end
    return all, records
  end

  -- What a call with this token claimed before, as far as it is still held so: the instant of the claim, and ids.
  function claimed_before(kept)
    local sids, blobs, claimed_at = {}, {}, kept[1]
    for i = 2, #kept do
      local r = fetch_one(kept[i])
      if r and r[STATE] == RUNNING and r[CLAIMED] == claimed_at then
        sids[#sids + 1], blobs[#blobs + 1] = kept[i], call('HGET', P .. 'j:' .. sub(kept[i], 1, BUCKET_END), kept[i])
      end
    end
    return sids, blobs
  end
end)()

-- verb: claim (token)
-- Claim: owner, length of the lease, wants (queue, count, class or false).
local before = answered()
if before then
  return jobs_reply(claimed_before(before))
end
local sids, blobs = claim(decode(ARGV[5]), ARGV[3], tonumber(ARGV[4]))
write_all()
answer({ now, unpack(sids) })
return jobs_reply(sids, blobs)
