-- How people paid in each hour.
SELECT window(paid_at, '1 hour').start AS hour, method, count(*) AS payments, sum(amount) AS paid, max(amount) AS largest
FROM payments
GROUP BY window(paid_at, '1 hour'), method
