-- The extent of a log: first and next offset of each partition; nothing: it is none.
local parts, n = log_state(ARGV[3])
local reply = {}
for i = 0, (n or 0) - 1 do
  reply[i + 1] = { parts[i].first, parts[i].next }
end
return reply
