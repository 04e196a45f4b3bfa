-- Intake: what a batch of drafts changes (`forebay.engine.intake`). The plan is made before anything is written; a batch
-- that is refused changes nothing. Drafts of one batch see each other: the second of two equal keys is a duplicate of the
-- first, newer work of the same subject replaces older work, and all count against the capacity.
--
-- A batch has the versions of the specs that it relies on, by queue; shapes, each what alike drafts have in common; and
-- runs: the number of a shape and how many drafts have it. The fields of a shape: queue cls kind max_attempts delay run_at
-- base timed more · digest, window: of its key (no window: its job's state decides) · quiet, at_most: of its merge ·
-- wrong: why it cannot become a job.
-- needs: maintain

local NEW, DUPLICATE, MERGED = 0, 1, 2
local RECEIPT_FIRST, RECEIPT_SIZE, RECEIPT_ANSWER = 1, 2, 3
local plan_intake, accept, accept_batch, receipts_of

(function()
  -- When the subject has been quiet for long enough, if nothing comes any more.
  local function quiet_until(shape, first)
    local quiet = now + shape.quiet
    return shape.at_most and min(quiet, first + shape.at_most) or quiet
  end

  local function due_of(shape)
    local due = shape.run_at and max(now, shape.run_at) or now + shape.delay
    return shape.quiet and max(due, quiet_until(shape, now)) or due
  end

  local function add_receipt(plan, first, n, answer)
    local last = plan.receipts[#plan.receipts]
    if answer == NEW and last and last[RECEIPT_ANSWER] == NEW and last[RECEIPT_FIRST] + last[RECEIPT_SIZE] == first then
      last[RECEIPT_SIZE] = last[RECEIPT_SIZE] + n
    else
      plan.receipts[#plan.receipts + 1] = { first, n, answer }
    end
  end

  -- The job that has the key of this shape already; `conflict`: with another payload.
  local function known_key(plan, shape)
    local name = shape.queue .. '|' .. shape.more.key
    local fact = plan.keys[name]
    if not fact then
      local kept = call('HGET', P .. 'k:' .. shape.queue, shape.more.key)
      fact = kept and decode(kept)
      if not fact then
        return nil
      end
      if fact[KEY_UNTIL] >= MAX_INSTANT then
        local r = fetch_one(fact[KEY_SID])
        local mask = queue_of(shape.queue).rule.unique or 7
        if not r or floor(mask / 2 ^ r[STATE]) % 2 == 0 then
          plan.stale[#plan.stale + 1] = { shape.queue, shape.more.key, fact[KEY_SID] }
          return nil
        end
      elseif fact[KEY_UNTIL] <= now then
        return nil
      end
    end
    return fact[KEY_SID], fact[KEY_DIGEST] ~= shape.digest
  end

  -- A job that has not run yet, and takes over newer work of its subject.
  local function merge_target(plan, shape)
    local name = shape.queue .. '|' .. shape.more.subject
    if plan.newest[name] ~= nil then
      return plan.newest[name]
    end
    local sid = call('HGET', P .. 'fresh:' .. shape.queue, shape.more.subject)
    local r = sid and fetch_one(sid)
    return r and (more(r).expires or MAX_INSTANT) > now and sid
  end

  local function add_new(plan, shape, n, body)
    local first = plan.last + 1
    plan.last = plan.last + n
    plan.inserts[#plan.inserts + 1] = { shape = shape, first = first, n = n, body = body }
    plan.arrivals[shape.queue] = (plan.arrivals[shape.queue] or 0) + n
    add_receipt(plan, first, n, NEW)
    return first
  end

  -- One draft that has a key or merges; why the batch is refused, or nil.
  local function plan_keyed(plan, shape, body)
    local key = shape.more.key
    if key then
      local sid, conflict = known_key(plan, shape)
      if conflict then
        return { 'conflict', shape.queue, key, tonumber(sid) }
      elseif sid then
        add_receipt(plan, tonumber(sid), 1, DUPLICATE)
        return nil
      end
    end
    if shape.wrong then
      return { 'wrong', unpack(shape.wrong) }
    end
    local target = shape.merges and merge_target(plan, shape)
    if target then
      plan.merged[#plan.merged + 1] = { target, shape, body }
      plan.spared[target] = true
      add_receipt(plan, tonumber(target), 1, MERGED)
    end
    local sid = target or sid_of(add_new(plan, shape, 1, body))
    if shape.merges then
      local alive = (shape.more.expires or MAX_INSTANT) > now
      plan.newest[shape.queue .. '|' .. shape.more.subject] = alive and sid or false
    end
    if key then
      local till = shape.window and now + shape.window or MAX_INSTANT
      plan.keys[shape.queue .. '|' .. key] = { sid, shape.digest, till, shape.queue, key }
    end
    return nil
  end

  local function rank_of(shape)
    return rank_at(shape.base or ZERO, shape.timed, due_of(shape))
  end

  -- The jobs of a queue that are shed, the oldest or the lowest, to make room for so many; nil: there are not enough.
  local function choose_shed(plan, queue, which, excess)
    local most = excess
    for _ in pairs(plan.spared) do
      most = most + 1
    end
    local found = which == 'oldest' and call('ZRANGE', P .. 'old:' .. queue, 0, most - 1)
      or call('ZRANGE', P .. 'low:' .. queue, 0, most - 1, 'REV')
    local shed, last = {}, nil
    for _, member in ipairs(found) do
      local sid = sub(member, -16)
      if not plan.spared[sid] and #shed < excess then
        shed[#shed + 1], last = sid, member
      end
    end
    if #shed < excess then
      return nil
    end
    for _, insert in ipairs(which == 'lowest' and plan.inserts or NOTHING) do
      if insert.shape.queue == queue and rank_of(insert.shape) .. sid_of(insert.first + insert.n - 1) > last then
        return nil
      end
    end
    return shed
  end

  -- Whether every queue has room for the new jobs, or can make it; `shed` are the jobs that give way.
  local function make_room(plan)
    local names, shed = {}, {}
    for name in pairs(plan.arrivals) do
      names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
      local q, arriving = queue_of(name), plan.arrivals[name]
      local limit = q.rule.limit
      local excess = limit and arriving - (limit - depth(q)) or 0
      if excess > 0 then
        local some = q.rule.shed and choose_shed(plan, name, q.rule.shed, excess)
        if not some then
          return { 'full', name, depth(q), limit, arriving }
        end
        for _, sid in ipairs(some) do
          shed[#shed + 1] = sid
        end
      end
    end
    return nil, shed
  end

  local function new_record(shape)
    local due, extra = due_of(shape), {}
    for name, value in pairs(shape.more or NOTHING) do
      extra[name] = value
    end
    extra.base, extra.merges = shape.base, shape.merges
    extra.sheds = marks_shed(queue_of(shape.queue))
    extra.keyed = extra.key and not shape.window and { extra.key } or nil
    local state = due <= now and not extra.line and READY or WAITING
    local rank = rank_at(shape.base or ZERO, shape.timed, due)
    return {
      state, shape.queue, shape.cls or '', shape.kind, rank, due, now, shape.max_attempts, 0, 0, shape.timed,
      false, false, false, extra,
    }
  end

  -- Members of sorted sets, by key, and what is kept of jobs: written once for all inserts of a batch.
  local function gather(sets, key, score, member)
    local list = sets[key] or {}
    list[#list + 1], list[#list + 2] = score, member
    sets[key] = list
  end

  -- Many alike jobs that are in no other sets than those of their state.
  local function add_many(sids, r, sets)
    local q, ready = queue_of(r[QUEUE]), r[STATE] == READY
    if ready and r[MORE] and r[MORE].flow then
      streams.add(q, sids, r)
    elseif ready then
      local key = P .. 'r:' .. q.name .. '|' .. lane_of(r)
      for i = 1, #sids do
        gather(sets, key, 0, r[RANK] .. sids[i])
      end
    end
    if ready then
      touch_lane(q, r)
    end
    if not ready or is_odd(r) then
      local key = P .. (ready and 'odd:' .. q.name or 'due')
      for i = 1, #sids do
        gather(sets, key, r[DUE], sids[i])
      end
    end
    count(r, #sids)
  end

  local function insert_run(insert, new)
    local shape = insert.shape
    local r = new_record(shape)
    local m, sids, size = r[MORE], sids_from(insert.first, insert.n), #new.sids
    if r[STATE] == READY and streams.accepts(queue_of(r[QUEUE]), sids[1], r) then
      m.flow = r[DUE]
    end
    local blob = encoded(r)
    for i, sid in ipairs(sids) do
      if m.line then
        local is = edited(r)
        is[MORE].behind = not join_line(sid, m.line) or nil
        is[STATE] = not is[MORE].behind and r[DUE] <= now and READY or WAITING
        index_job(sid, is, true)
        blob = encoded(is)
      elseif m.expires or m.sheds or m.merges or m.keyed then
        index_job(sid, r, true)
      end
      new.sids[size + i], new.blobs[size + i], new.bodies[size + i] = sid, blob, ARGV[insert.body + i - 1]
    end
    if not (m.line or m.expires or m.sheds or m.merges or m.keyed) then
      add_many(sids, r, new.sets)
    end
    local facts = { 'accepted', insert.first, 1, r[QUEUE], r[KIND], 0, 0, r[MAX_ATTEMPTS], now, r[DUE], 0, 0 }
    add_alike(facts, insert.n, trait_of(m))
  end

  local function insert_all(inserts)
    local new = { sids = {}, blobs = {}, bodies = {}, sets = {} }
    for _, insert in ipairs(inserts) do
      insert_run(insert, new)
    end
    store('b', new.sids, new.bodies)
    store('j', new.sids, new.blobs)
    for key, members in pairs(new.sets) do
      call_all('ZADD', key, members)
    end
  end

  -- A waiting job takes over newer work and its urgency; its time moves only where quiet is waited for.
  local function merge(sid, shape, body)
    local r = fetch_one(sid)
    local is, base, moved = edited(r), shape.base or ZERO, nil
    local m = is[MORE]
    is[KIND] = shape.kind
    if shape.quiet and r[DUE] > now then
      moved = max(r[DUE], quiet_until(shape, r[ENQUEUED]))
      is[DUE], is[RANK] = moved, rank_at(base, r[TIMED], moved)
    else
      is[RANK] = rebased(r[RANK], m.base or ZERO, base)
    end
    m.base, m.priority, m.deadline, m.expires, m.meta =
      shape.base, shape.more.priority, shape.more.deadline, shape.more.expires, shape.more.meta
    if shape.more.key and not shape.window then
      local keyed = { unpack(m.keyed or NOTHING) }
      keyed[#keyed + 1] = shape.more.key
      m.keyed = keyed
    end
    move(sid, r, is)
    call('HSET', P .. 'b:' .. sub(sid, 1, BUCKET_END), sid, ARGV[body])
    local facts = { 'merged', tonumber(sid), 1, r[QUEUE], shape.kind, 0, 0, 0, 0, moved or 0, 0, 0 }
    add_job(facts, trait_of(shape.more))
  end

  -- A key is taken from the job that had it.
  local function release_key(queue, key, sid)
    local r = fetch_one(sid)
    if r and more(r).keyed then
      local is, keyed = edited(r), {}
      for _, each in ipairs(more(r).keyed) do
        if each ~= key then
          keyed[#keyed + 1] = each
        end
      end
      is[MORE].keyed = #keyed > 0 and keyed or nil
      move(sid, r, is)
    end
  end

  local function remember_keys(plan)
    for _, stale in ipairs(plan.stale) do
      release_key(unpack(stale))
    end
    for _, fact in pairs(plan.keys) do
      local sid, digest, till, queue, key = unpack(fact)
      call('HSET', P .. 'k:' .. queue, key, pack({ sid, digest, till }))
      call('ZADD', P .. 'ku:' .. queue, till, key)
      if till < MAX_INSTANT then
        call('ZADD', P .. 'windows', 'LT', till, queue)
      end
    end
  end

  -- Plan every draft; the plan, or nil and why the batch is refused. Payloads are in ARGV from `body` on; `only`: of
  -- the drafts, which come one by one, those at these places.
  function plan_intake(batch, body, only)
    local last, delivery = unpack(call('HMGET', P .. 'head', 'last', 'delivery'))
    streams.mode = delivery or not last and batch.delivery or 'sets'
    if batch.delivery and batch.delivery ~= streams.mode then
      return nil, { 'delivery', streams.mode }
    end
    local plan = {
      last = tonumber(last or 0), inserts = {}, merged = {}, receipts = {}, arrivals = {},
      keys = {}, newest = {}, spared = {}, stale = {},
    }
    for queue, version in pairs(batch.versions) do
      if queue_of(queue).version ~= version then
        return nil, { 'stale' }
      end
    end
    for i = 1, #batch.runs, 2 do
      local shape, n = batch.shapes[batch.runs[i]], batch.runs[i + 1]
      if only and not only[(i + 1) / 2] then
        body = body + n
        n = 0
      elseif shape.merges or shape.more and shape.more.key then
        for k = 0, n - 1 do
          local refusal = plan_keyed(plan, shape, body + k)
          if refusal then
            return nil, refusal
          end
        end
      elseif shape.wrong then
        return nil, { 'wrong', unpack(shape.wrong) }
      else
        for k = 0, n - 1, BATCH do
          add_new(plan, shape, min(BATCH, n - k), body + k)
        end
      end
      body = body + n
    end
    local refusal, shed = make_room(plan)
    plan.shed = shed
    return not refusal and plan or nil, refusal
  end

  -- Carry out a plan; whether it made or changed a job.
  function accept(plan)
    for _, sid in ipairs(plan.shed) do
      dead_letter(sid, fetch_one(sid), GAVE_WAY, 'shed')
    end
    insert_all(plan.inserts)
    for _, merged in ipairs(plan.merged) do
      merge(unpack(merged))
    end
    remember_keys(plan)
    if #plan.inserts > 0 then
      call('HSET', P .. 'head', 'last', plan.last)
      if streams.mode == 'streams' then
        call('HSETNX', P .. 'head', 'delivery', 'streams')
      end
      sweep_keys(2 * (#plan.inserts + 1))
    end
    return #plan.inserts + #plan.merged > 0
  end

  -- Accept the batch in ARGV, from this argument on; the plan, or nil and why it is refused.
  function accept_batch(first)
    local plan, refusal = plan_intake(decode(ARGV[first]), first + 1)
    if plan and accept(plan) then
      set_verb('enqueue')
    end
    return plan, refusal
  end

  function receipts_of(plan)
    local reply = { 'ok' }
    for _, receipt in ipairs(plan.receipts) do
      for _, number in ipairs(receipt) do
        reply[#reply + 1] = number
      end
    end
    return reply
  end
end)()

-- verb: enqueue (grows, once)
-- Enqueue: a batch, and its payloads.
local plan, refusal = accept_batch(3)
if not plan then
  return refusal, REFUSED
end
write_all()
return receipts_of(plan)

-- verb: ingest (grows, once)
-- Ingest: a source, its checkpoint before or empty, its checkpoint after, a batch, its payloads.
if (call('HGET', P .. 'sources', ARGV[3]) or '') ~= ARGV[4] then
  return { 'moved' }, REFUSED
end
local plan, refusal = accept_batch(6)
if not plan then
  return refusal, REFUSED
end
call('HSET', P .. 'sources', ARGV[3], ARGV[5])
call('ZADD', P .. 'sources_at', now, ARGV[3])
write_all()
return receipts_of(plan)

-- verb: replace_dead (grows, once)
-- Replace dead jobs by new ones: ids, a batch with one draft for each, its payloads. The ids of those that were dead, and receipts.
local sids, only, going, seen = decode(ARGV[3]), {}, {}, {}
for i, sid in ipairs(sids) do
  local r = not seen[sid] and fetch_one(sid)
  if r and r[STATE] == DEAD then
    only[i], seen[sid] = true, true
    going[#going + 1] = sid
  end
end
local plan, refusal = plan_intake(decode(ARGV[4]), 5, only)
if not plan then
  return refusal, REFUSED
end
remove_all(going)
accept(plan)
if #going > 0 then
  set_verb('replace_dead')
end
write_all()
return { 'ok', receipts_of(plan), going }
