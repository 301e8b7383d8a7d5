"""What is expected of rows and batches: Great Expectations' rules, in a form that runs everywhere."""
