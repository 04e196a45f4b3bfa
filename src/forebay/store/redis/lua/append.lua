-- Append: a log, then for each entry the number that its key gives or -1, the key or an empty text, and the body.
local before = answered()
if before then
  return before
end
local name = ARGV[3]
local parts, n = log_state(name)
if not parts then
  return { 'kind' }
end
local reply, grown = { 'ok' }, {}
for i = 4, #ARGV, 3 do
  local number = tonumber(ARGV[i])
  if number >= 0 then
    number = number % n
  else
    number = 0
    for other = 1, n - 1 do
      number = parts[other].next < parts[number].next and other or number
    end
  end
  local part = parts[number]
  part.at = max(now, part.at)
  local fields = { 'a', part.at, 'b', ARGV[i + 2] }
  if ARGV[i + 1] ~= '' then
    fields[5], fields[6] = 'k', ARGV[i + 1]
  end
  call('XADD', stream(name, number), text(part.next + 1), unpack(fields))
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = number, part.next, part.at
  part.next = part.next + 1
  grown[number] = part
end
for number, part in pairs(grown) do
  call('HSET', P .. 'log:' .. name, 'next:' .. number, part.next, 'at:' .. number, part.at)
end
if next(grown) then
  news[name] = true
  publish('work', news)
end
return answer(reply)
