-- How people paid in the last five days, as shares of all payments.
SELECT method, sum(payments) AS payments, sum(payments) / sum(sum(payments)) OVER () AS share
FROM payments_per_hour
WHERE hour > (SELECT max(hour) FROM payments_per_hour) - INTERVAL 5 DAYS
GROUP BY method
ORDER BY share DESC, method
