-- The commit point. The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's.
-- The last settle is kept as a mark, the delivery and the letter of the verdict, on the record or, once the job is
-- gone, beside it: a repeated one is answered alike.
--
-- Settlements come in groups with one verdict: code, delivery, ids, and where it has them: duration (how long until the job is
-- tried again, or for how long it is kept), error, result (its number in ARGV), keep_rank (a job that waits again keeps its
-- rank), till (the group is void if the lease has been extended beyond it).
-- Codes: a acknowledged, r retried, d dead, l released, c cancelled.
-- needs: maintain

local settled, ended, acked, marks_left, waits = {}, {}, {}, {}, false
local settle

(function()
  local CHANGES = { a = 'acked', r = 'retried', d = 'died', l = 'released', c = 'discarded' }

  -- The record of a job after a verdict; nil: it is deleted. And until when, for the ledger.
  local function after_verdict(r, group, mark)
    local code, error, duration = group.code, group.error, group.duration or 0
    if code == 'd' then
      return dead_record(r, error, mark), 0
    end
    local keep = (code == 'a' or code == 'c') and kept_until(r[QUEUE], duration)
    if (code == 'a' or code == 'c') and not keep then
      return nil, 0
    end
    local is = edited(r)
    local m = is[MORE]
    m.mark, is[OWNER], is[CLAIMED], is[UNTIL] = mark, false, false, false
    if keep then
      is[STATE], m.finished, m.kept, m.merges = code == 'a' and DONE or CANCELLED, now, keep, nil
      return is, keep
    end
    is[STATE], is[DUE] = WAITING, now + duration
    if group.keep_rank then
      is[RANK] = rank_back(r[RANK], r[TIMED])
    else
      is[RANK] = rank_at(m.base or ZERO, r[TIMED], is[DUE])
    end
    if error then
      m.errors = failures(r, error)
    end
    if code == 'l' then
      is[ATTEMPT] = r[ATTEMPT] - 1
    end
    return is, is[DUE]
  end

  local function apply(sid, r, group, mark)
    local is, till = after_verdict(r, group, mark)
    give_back(r, 1)
    move(sid, r, is)
    if not is then
      marks_left[#marks_left + 1] = sid
      marks_left[#marks_left + 1] = mark
      has_ended[sid] = group.code == 'c' or nil
    elseif is[STATE] == DONE and group.result then
      call('HSET', P .. 'x:' .. sub(sid, 1, 14), sid, ARGV[group.result])
    end
    waits = waits or (is and is[STATE] == WAITING)
    ended[#ended + 1] = { sid, CHANGES[group.code], r, till, group.error and trait_of_error(group.error) or nil }
  end

  -- Whether a job that is acknowledged is deleted and nothing else; the same for all that have its record in this group.
  local function is_plain(known, blob, delivery)
    local plain = known[blob]
    if plain == nil then
      local r = record(blob)
      local m = more(r)
      local held = r[STATE] == RUNNING and r[DELIVERY] == delivery
      plain = held and not m.line and not m.keyed and not m.cancel_requested and not queue_of(r[QUEUE]).rule.keep
      known[blob] = plain
    end
    return plain
  end

  -- Plain jobs that are done, all at once.
  local function acknowledge(sids, records, mark)
    local counts, flowing, size = {}, {}, #marks_left
    for i = 1, #sids do
      local r = records[i]
      counts[r] = (counts[r] or 0) + 1
      marks_left[size + 1], marks_left[size + 2] = sids[i], mark
      size = size + 2
      if r[MORE] and r[MORE].flow then
        local ids = flowing[r[QUEUE]] or {}
        ids[#ids + 1], flowing[r[QUEUE]] = entry_id(sids[i], r[MORE].flow), ids
      end
    end
    for queue, ids in pairs(flowing) do
      streams.drop(queue_of(queue), ids)
    end
    for r, n in pairs(counts) do
      count(r, -n)
      give_back(r, n)
      has_room[r[QUEUE]] = true
    end
    call('ZREM', P .. 'lease', unpack(sids))
    drop_progress(sids)
    erase(sids)
    acked[#acked + 1] = { sids, records }
  end

  local function last_mark(sid)
    return call('HGET', P .. 'gone0', sid) or call('HGET', P .. 'gone1', sid)
  end

  -- One settlement: whether it counts, now or before.
  local function settle_one(group, sid, blob, mark)
    local last = settled[sid]
    if not last and blob then
      local r = record(blob)
      local outlived = group.till and r[STATE] == RUNNING and r[UNTIL] > group.till
      if r[STATE] == RUNNING and r[DELIVERY] == group.delivery and not outlived then
        settled[sid] = mark
        apply(sid, r, group, mark)
        return true
      end
      last = more(r).mark
    end
    return (last or not blob and last_mark(sid)) == mark
  end

  local function settle_group(group, replies)
    local sids, known, gone, records, size = group.ids, {}, {}, {}, #replies
    local mark, blobs, simple = text(group.delivery) .. group.code, fetch(sids), group.code == 'a' and not group.duration and not group.result
    for i = 1, #sids do
      local sid, blob = sids[i], blobs[i]
      if simple and blob and not settled[sid] and is_plain(known, blob, group.delivery) then
        settled[sid] = mark
        gone[#gone + 1], records[#gone + 1] = sid, record(blob)
        replies[size + i] = 1
      else
        replies[size + i] = settle_one(group, sid, blob, mark) and 1 or 0
      end
    end
    if #gone > 0 then
      acknowledge(gone, records, mark)
    end
  end

  -- Ids and records in the order of the ids: jobs that were settled together mostly have consecutive ids.
  local function in_order(sids, records)
    local order = {}
    for i = 1, #sids do
      order[i] = { sids[i], records[i] }
    end
    table.sort(order, function(one, other) return one[1] < other[1] end)
    for i = 1, #order do
      sids[i], records[i] = order[i][1], order[i][2]
    end
  end

  local function record_acked(sids, records)
    for i = 2, #sids do
      if sids[i] < sids[i - 1] then
        in_order(sids, records)
        break
      end
    end
    add_leased('acked', sids, records, 0)
  end

  local function record_ended()
    for _, each in ipairs(acked) do
      record_acked(each[1], each[2])
    end
    table.sort(ended, function(one, other) return one[1] < other[1] end)
    for _, each in ipairs(ended) do
      add_held(each[2], tonumber(each[1]), 1, each[3], each[4], each[5])
    end
    if #ended + #acked > 0 then
      set_verb('settle')
    end
  end

  function settle(groups)
    local replies = {}
    for _, group in ipairs(groups) do
      settle_group(group, replies)
    end
    keep_marks(marks_left)
    record_ended()
    if waits then
      maintain(MAINTAIN_LIMIT)
    end
    return replies
  end
end)()

-- verb: settle
-- Settle: groups of settlements, then the results that they keep.
local replies = settle(decode(ARGV[3]))
write_all()
return replies

-- verb: settle_and_claim (token, needs claim)
-- Settle, then claim: groups, owner, length of the lease, wants, then the results that the settlements keep.
local replies = settle(decode(ARGV[3]))
next_record()
local before = answered()
local sids, blobs
if before then
  sids, blobs = claimed_before(before)
else
  sids, blobs = claim(decode(ARGV[6]), ARGV[4], tonumber(ARGV[5]))
  answer({ now, unpack(sids) })
end
write_all()
return { replies, jobs_reply(sids, blobs) }
