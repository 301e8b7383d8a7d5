-- A visit is a run of clicks of one customer with no pause of 30 minutes.
SELECT session_window(clicked_at, '30 minutes').start AS started_at, customer_id, count(*) AS clicks,
       min(clicked_at) AS first_click, max(clicked_at) AS last_click
FROM clicks
GROUP BY session_window(clicked_at, '30 minutes'), customer_id
