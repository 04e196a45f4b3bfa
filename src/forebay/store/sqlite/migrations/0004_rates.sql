-- Rates, costs and releases: the number is taken, the statements are to come.
SELECT 1;
