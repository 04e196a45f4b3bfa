-- The rule of the ledger: whether it is off, keep, keep_bytes, its first and its next offset.
local rule = read_rule()
return { rule.off and 1 or 0, rule.keep, rule.keep_bytes, rule.first, rule.next }
