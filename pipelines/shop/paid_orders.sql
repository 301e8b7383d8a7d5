-- Each order with its payments within two hours; one that nobody paid stands there alone.
SELECT ordered_at, o.order_id, payment_id, o.amount AS ordered, p.amount AS paid
FROM orders o LEFT JOIN payments p
  ON p.order_id = o.order_id AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 2 HOURS
