-- The commit point. The fence decides, not the time: a settle counts if the job runs and its delivery is the lease's.
-- The last settle is remembered as a mark, the delivery and the letter of the verdict, on the record or, once the job is
-- gone, beside it: a repeated one is answered alike.
--
-- Settlements come in groups of one verdict: code, delivery, until, after, error, result (its place in ARGV), ids.
-- Codes: a acknowledged, r retried, d dead, l released, c cancelled.

local settled, ended, marks_left, waits = {}, {}, {}, false
local settle

do
  local ABANDONED = 'forebay.Abandoned'
  local CHANGES = { a = 'acked', r = 'retried', d = 'died', l = 'released', c = 'dismissed' }

  -- What a job is after a verdict; nil: it is gone. And until when, as the ledger tells it.
  local function after_verdict(r, group, mark)
    local code, error = group[1], group[5]
    if code == 'd' then
      return dead(r, error, mark), 0
    end
    local keep = (code == 'a' or code == 'c') and kept_until(r[QUEUE])
    if (code == 'a' or code == 'c') and not keep then
      return nil, 0
    end
    local is = edited(r)
    local m = is[MORE]
    m.mark, is[OWNER], is[CLAIMED], is[UNTIL] = mark, false, false, false
    if keep then
      is[STATE], m.finished, m.kept, m.gate, m.merges = code == 'a' and DONE or CANCELLED, now, keep, nil, nil
      return is, keep
    end
    is[STATE], is[DUE] = WAITING, now + group[4]
    if code == 'r' then
      is[RANK], m.errors = rank_at(m.base or ZERO, r[TIMED], is[DUE]), failures(r, error)
    else
      is[ATTEMPT] = r[ATTEMPT] - 1
    end
    return is, is[DUE]
  end

  local function apply(sid, r, group, mark)
    local is, till = after_verdict(r, group, mark)
    if more(r).gates then
      free_slots(r)
      if not is or is[STATE] ~= WAITING then
        end_gates(sid, r, is and is[STATE] or DONE)
      end
    end
    move(sid, r, is)
    if not is then
      marks_left[#marks_left + 1] = sid
      marks_left[#marks_left + 1] = mark
    elseif is[STATE] == DONE and group[6] > 0 then
      call('HSET', P .. 'x:' .. sub(sid, 1, 14), sid, ARGV[group[6]])
    end
    waits = waits or (is and is[STATE] == WAITING)
    ended[#ended + 1] = { sid, CHANGES[group[1]], r, till, group[5] and trait_of_error(group[5]) or nil }
  end

  -- Whether a job that is held so is simply gone when it is acknowledged.
  local function is_plain(r)
    local m = more(r)
    return not m.gates and not m.keyed and not line(r[QUEUE]).rule.keep
  end

  -- Plain jobs that are done, all at once.
  local function acknowledge(gone, mark)
    local sids, counts = {}, {}
    for i, each in ipairs(gone) do
      local sid, r = each[1], each[2]
      sids[i] = sid
      counts[r] = (counts[r] or 0) + 1
      marks_left[#marks_left + 1] = sid
      marks_left[#marks_left + 1] = mark
      ended[#ended + 1] = { sid, 'acked', r, 0 }
    end
    for r, n in pairs(counts) do
      count(r, -n)
      eased[r[QUEUE]] = true
    end
    call('ZREM', P .. 'lease', unpack(sids))
    erase(sids)
  end

  local function last_mark(sid)
    return call('HGET', P .. 'gone0', sid) or call('HGET', P .. 'gone1', sid)
  end

  local function settle_group(group, replies)
    local code, delivery, sids = group[1], group[2], group[7]
    local mark, blobs, gone = text(delivery) .. code, fetch(sids), {}
    local simple = code == 'a' and group[6] == 0
    local abandoned = group[5] and group[5][1] == ABANDONED
    for i, sid in ipairs(sids) do
      local last = settled[sid]
      if not last and blobs[i] then
        local r = record(blobs[i])
        local held = r[STATE] == RUNNING and r[DELIVERY] == delivery
        if held and not (abandoned and r[UNTIL] > group[3]) then
          settled[sid], last = mark, mark
          if simple and is_plain(r) then
            gone[#gone + 1] = { sid, r }
          else
            apply(sid, r, group, mark)
          end
        else
          last = more(r).mark
        end
      end
      last = last or not blobs[i] and last_mark(sid)
      replies[#replies + 1] = last == mark and 1 or 0
    end
    if #gone > 0 then
      acknowledge(gone, mark)
    end
  end

  -- Jobs that were settled together are mostly neighbours.
  local function tell_ended()
    table.sort(ended, function(one, other) return one[1] < other[1] end)
    for _, each in ipairs(ended) do
      told_held(each[2], each[1], each[3], each[4], each[5])
    end
    if #ended > 0 then
      tell('settle')
    end
  end

  function settle(groups)
    local replies = {}
    for _, group in ipairs(groups) do
      settle_group(group, replies)
    end
    remember(marks_left)
    tell_ended()
    if waits or #touched > 0 then
      tend(TEND_LIMIT)
    end
    return replies
  end
end
