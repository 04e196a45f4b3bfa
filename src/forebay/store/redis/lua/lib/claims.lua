-- Handing out: the smallest places of a class, straight from its set; classes take turns by deficit round robin, and all
-- processes share the turns.

local claim, claimed_before

(function()
  -- What a job is once it is claimed; alike jobs are worked out once a call.
  local function handed_out(known, blob, owner, till)
    local r = record(blob)
    local is, m = edited(r), more(r)
    is[STATE], is[ATTEMPT], is[DELIVERY] = RUNNING, r[ATTEMPT] + 1, r[DELIVERY] + 1
    is[OWNER], is[CLAIMED], is[UNTIL], is[MORE].merges = owner, now, till, nil
    local c = { r = r, is = is, n = 0, odd = is_odd(r), rests = m.expires or m.sheds, merges = m.merges and m.subject }
    c.plain = not (c.odd or c.rests or c.merges)
    c.blob = encoded(is)
    known[blob] = c
    return c
  end

  local function leave_rest(sid, c)
    if c.odd then
      call('ZREM', P .. 'odd:' .. c.r[QUEUE], sid)
    end
    if c.rests then
      end_rest(sid, c.r)
    end
    if c.merges and call('HGET', P .. 'fresh:' .. c.r[QUEUE], c.merges) == sid then
      call('HDEL', P .. 'fresh:' .. c.r[QUEUE], c.merges)
    end
  end

  -- How many ready jobs a class has.
  local function standing(l, cls)
    return call('ZCARD', P .. 'r:' .. l.name .. '|' .. cls) + (cls == '' and l.streamed or 0)
  end

  -- The next jobs of one class leave the set, or the stream: ids and records.
  local function next_of(l, cls, most, owner)
    if cls ~= '' or not l.tail then
      local sids = popped(l, cls, most)
      return sids, fetch(sids)
    end
    local sids, blobs, before = nil, nil, {}
    if l.streamed > 0 then
      sids, blobs = next_of_both(l, most, owner)
      if blobs then
        return sids, blobs
      end
    else
      sids = popped(l, cls, most)
    end
    blobs = fetch(sids)
    for i = 1, #sids do
      local r = record(blobs[i])
      if r[DELIVERY] > 0 and more(r).flow then
        before[#before + 1] = entry_id(sids[i], r[MORE].flow)
      end
    end
    if #before > 0 and not take_over(l, owner, before) then
      blobs = fetch(sids)
      for i = 1, #sids do
        call('ZREM', P .. 'r:' .. l.name .. '|', record(blobs[i])[RANK] .. sids[i])
      end
    end
    return sids, blobs
  end

  -- The next jobs of one class become running; lists of their ids and records.
  local function take_class(l, cls, most, owner, till)
    local known, leases, records, sids, blobs = {}, {}, {}, next_of(l, cls, most, owner)
    if #sids == 0 then
      return sids, blobs
    end
    for i = 1, #sids do
      local sid, c = sids[i], known[blobs[i]] or handed_out(known, blobs[i], owner, till)
      c.n = c.n + 1
      if not c.plain then
        leave_rest(sid, c)
      end
      blobs[i], records[i] = c.blob, c.is
      leases[2 * i - 1], leases[2 * i] = till, sid
    end
    told_runs('claimed', sids, records, till)
    for _, c in pairs(known) do
      count(c.r, -c.n)
      count(c.is, c.n)
    end
    call('ZADD', P .. 'lease', unpack(leases))
    store('j', sids, blobs)
    return sids, blobs
  end

  -- Who gives how many of the next jobs, in this order, beside what was given. `starting`: who has nobody ready may have
  -- somebody whom a rate lets in.
  local function deal(l, wanted, given, starting)
    local ring, deficits, open = P .. 'ring:' .. l.name, P .. 'deficit:' .. l.name, P .. 'pc:' .. l.name .. '|'
    local weights, default, turns = l.rule.weights or NOTHING, l.rule.default or 1, {}
    if standing(l, '') > 0 or starting and call('EXISTS', open) > 0 then
      join_ring(l.name, '')
    end
    while wanted > 0 do
      local cls = call('LINDEX', ring, 0)
      if not cls then
        break
      end
      local left = standing(l, cls) - (given[cls] or 0)
      left = left + (starting and call('EXISTS', open .. cls) * 2 or 0)
      local deficit = tonumber(call('HGET', deficits, cls))
      deficit = deficit > 0 and deficit or weights[cls] or default
      local part = max(0, min(wanted, left, deficit))
      wanted, given[cls] = wanted - part, (given[cls] or 0) + part
      if part > 0 then
        turns[#turns + 1] = { cls, part }
      end
      if part == max(left, 0) then
        leave_ring(l.name, cls)
      else
        call('HSET', deficits, cls, deficit - part)
        if deficit == part then
          call('LMOVE', ring, ring, 'LEFT', 'RIGHT')
        end
      end
    end
    return turns
  end

  -- The next jobs of a queue, smallest place first within a class, classes by their shares.
  -- `turns` and what is `given`: if that is known already.
  local function take_queue(l, want, turns, given, owner, till)
    local cls = want[3]
    if cls then
      local sids, blobs = take_class(l, cls, want[2], owner, till)
      if cls ~= '' then
        keep_turn(l.name, cls)
      end
      return sids, blobs
    end
    if not turns and call('EXISTS', P .. 'ring:' .. l.name) == 0 then
      return take_class(l, '', want[2], owner, till)
    end
    turns = turns or deal(l, want[2], given)
    local taken, sids, blobs = {}, {}, {}
    for name, part in pairs(given) do
      if part > 0 then
        local some, records = take_class(l, name, part, owner, till)
        taken[name] = { some, records, 0 }
        keep_turn(l.name, name)
      end
    end
    for _, turn in ipairs(turns) do
      local class = taken[turn[1]]
      for _ = 1, turn[2] do
        class[3] = class[3] + 1
        sids[#sids + 1], blobs[#blobs + 1] = class[1][class[3]], class[2][class[3]]
      end
    end
    return sids, blobs
  end

  -- Let in at the rates of a queue, or of one class of it, what a claim wants beyond what is ready. Whether it was all,
  -- and how many tries are left.
  local function start(l, wanted, cls, tries)
    wanted = wanted - (cls and standing(l, cls) or l[READY])
    while wanted > 0 and tries > 0 do
      local sid, r = next_start(l.name, cls)
      if not sid then
        break
      end
      if readmit(sid, r, true, true) then
        wanted = wanted - 1
      else
        tries = tries - 1
      end
      open_gates(TEND_LIMIT)
    end
    return wanted <= 0, tries
  end

  -- The same where classes take turns, with what is ready and with what their rates let in: who gives how many.
  local function start_by_turns(l, wanted, given)
    local turns, tries, started = {}, TRIES, false
    while #turns < wanted and tries > 0 do
      write_paces()
      local turn = deal(l, 1, given, true)[1]
      if not turn then
        break
      end
      started, tries = start(l, given[turn[1]], turn[1], tries)
      if started then
        turns[#turns + 1] = turn
      else
        given[turn[1]] = given[turn[1]] - 1
        tries = tries - 1
      end
    end
    return turns
  end

  -- Let in at rates what is wanted; who gives how many, if classes take turns at that.
  local function let_start(l, want, given)
    write_paces()
    if l.rule.default and not want[3] and call('EXISTS', P .. 'po:' .. l.name) == 1 then
      return start_by_turns(l, want[2], given)
    end
    start(l, want[2], want[3], TRIES)
    return nil
  end

  -- Claim what is wanted; ids and records of all that was handed out.
  function claim(wants, owner, length)
    local total, all, records = 0, {}, {}
    for _, want in ipairs(wants) do
      total = total + want[2]
    end
    local _, through = tend(total + TEND_LIMIT)
    if not through then
      return all, records
    end
    for _, want in ipairs(wants) do
      local l = line(want[1])
      if l.paused <= now then
        local given, turns = {}, nil
        if #touched > 0 or call('EXISTS', P .. 'po:' .. l.name) == 1 then
          turns = let_start(l, want, given)
        end
        if l[READY] > 0 then
          local sids, blobs = take_queue(l, want, turns, given, owner, now + length)
          for i = 1, #sids do
            all[#all + 1], records[#records + 1] = sids[i], blobs[i]
          end
        end
      end
    end
    if #all > 0 then
      tell('claim', owner)
    end
    return all, records
  end

  -- What a call with this token claimed before, as far as it is still held so: the instant of the claim, and ids.
  function claimed_before(kept)
    local sids, blobs = {}, {}
    for i = 2, #kept do
      local r = fetch_one(kept[i])
      if r and r[STATE] == RUNNING and r[CLAIMED] == kept[1] then
        sids[#sids + 1], blobs[#blobs + 1] = kept[i], call('HGET', P .. 'j:' .. sub(kept[i], 1, 14), kept[i])
      end
    end
    return sids, blobs
  end
end)()
