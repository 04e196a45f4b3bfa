-- Claim: owner, length of the lease, wants (queue, count, class or false).
local before = answered()
if before then
  return pictures(claimed_before(before))
end
local sids, blobs = claim(decode(ARGV[5]), ARGV[3], tonumber(ARGV[4]))
finish()
answer({ now, unpack(sids) })
return pictures(sids, blobs)
