"""Sentences that screens and pages share."""

WHY: dict[str, str] = {
    "late": "events came after the watermark, the stream did not wait for them",
    "duplicate": "copies of an event were told apart differently",
    "quarantine": "rows were released from quarantine since",
    "table": "a row of a table changed later",
    "version": "the declaration changed during the day",
    "cut": "events came after the cut: the batch was early",
    "lost": "the log dropped messages before the view had read them",
    "pending": "the stream has not told it yet",
    "unexplained": "no cause was found: somebody has to look at it",
}
LOST = {"retention": "the log had dropped them before they were read", "gap": "the log has no message there"}
