-- What was ordered in each minute, by country.
SELECT window(ordered_at, '1 minute').start AS minute, country, count(*) AS orders, sum(amount) AS revenue
FROM orders
GROUP BY window(ordered_at, '1 minute'), country
