"""The driver of a pipeline's speed layer and the queries that it runs."""
