-- Dead letters that lie elsewhere, and how long: the number is taken, the statements are to come.
SELECT 1;
