"""What Weir says when it will not do something: one line with what is wrong, where, and what to do."""


class Refusal(Exception):
    """A person's input or machine stands in the way. Shown as its one line, without a stack trace, with exit code 2."""
