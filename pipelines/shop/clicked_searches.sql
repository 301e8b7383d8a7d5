-- Which clicks followed a search within half an hour.
SELECT searched_at, s.search_id, click_id, term, page, clicked_at
FROM searches s JOIN clicks c
  ON c.search_id = s.search_id AND clicked_at BETWEEN searched_at AND searched_at + INTERVAL 30 MINUTES
