SELECT window(ordered_at, '1 hour').start AS hour, coalesce(customers.segment, 'unknown') AS segment,
       count(*) AS orders, sum(amount) AS revenue
FROM orders
GROUP BY window(ordered_at, '1 hour'), coalesce(customers.segment, 'unknown')
