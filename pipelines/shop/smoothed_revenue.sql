-- The revenue of each minute beside its moving average over a quarter of an hour.
SELECT minute, revenue, avg(revenue) OVER (ORDER BY minute RANGE BETWEEN INTERVAL 14 MINUTES PRECEDING AND CURRENT ROW) AS average
FROM (SELECT minute, sum(revenue) AS revenue FROM revenue_per_minute GROUP BY minute)
ORDER BY minute
