-- The five countries with the most revenue in the last day that is known.
SELECT country, sum(revenue) AS revenue, sum(orders) AS orders
FROM revenue_per_minute
WHERE minute > (SELECT max(minute) FROM revenue_per_minute) - INTERVAL 1 DAY
GROUP BY country
ORDER BY revenue DESC, country
LIMIT 5
