"""The nightly audit: the journal against raw, the speed cells against a recomputation."""
