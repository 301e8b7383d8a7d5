"""The intake: decode, clean, judge, dedupe and look up each message once, and write the result to the journal."""
