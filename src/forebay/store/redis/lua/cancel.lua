-- Cancel: ids. For each 0: gone, 1: it will not run, 2: its holder will be told.
local before = answered()
if before then
  return before
end
local GONE, CANCELLED_NOW, REQUESTED = 0, 1, 2
local replies, marks, ends, owners = {}, {}, {}, {}

-- A job that nobody holds will not run; until when it can be read.
local function dismiss(sid, r)
  local keep, m = kept_until(r[QUEUE]), more(r)
  if keep then
    local is = edited(r)
    is[STATE], is[MORE].finished, is[MORE].kept, is[MORE].behind, is[MORE].merges = CANCELLED, now, keep, nil, nil
    move(sid, r, is)
  else
    move(sid, r, nil)
    ended_now[sid] = true
    if m.mark then
      marks[#marks + 1] = sid
      marks[#marks + 1] = m.mark
    end
  end
  told_plain('cancelled', sid, r[QUEUE], r, keep)
end

for i, sid in ipairs(decode(ARGV[3])) do
  local r = fetch_one(sid)
  if not r or r[STATE] > RUNNING then
    replies[i] = GONE
  elseif r[STATE] == RUNNING then
    replies[i] = REQUESTED
    if not more(r).asked then
      local is = edited(r)
      is[MORE].asked = true
      move(sid, r, is)
      ends[#ends + 1] = { sid, r }
      owners[r[OWNER]] = true
    end
  else
    replies[i] = CANCELLED_NOW
    dismiss(sid, r)
  end
end
for _, each in ipairs(ends) do
  told_held('asked', tonumber(each[1]), 1, each[2], 0)
end
if #book.spans > 0 then
  tell('cancel')
end
remember(marks)
finish()
for owner in pairs(owners) do
  call('PUBLISH', P .. 'asked', owner)
end
return answer(replies)
