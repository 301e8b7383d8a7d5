"""The JSON that one process writes and another reads, by what it is about."""
