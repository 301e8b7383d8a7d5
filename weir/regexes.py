"""Regular expressions of declarations: what is plainly broken, and what could kill a driver, is refused before Spark sees it."""

import math
import re

MAX_REPEATS = 200
"""How often a group may repeat. Java's matcher takes stack for each time, and one value of 2,000 characters can exhaust it:
that ends not the query but the whole driver. A possessive repetition takes none."""
_REGEX_TOKEN = re.compile(
    r"(?P<flags>\(\?[a-zA-Z-]+\))|(?P<open>\((?:\?(?:[:=!>]|<[=!]|<\w+>|[a-zA-Z-]+:))?)|(?P<close>\))|(?P<class>\[\^?\]?)"
    r"|(?P<times>[*+?]|\{\d+(?:,\d*)?\})(?P<mode>[+?]?)|(?P<atom>\\Q.*?(?:\\E|\Z)|\\[pPxN]\{[^}]*\}|\\.|.)",
    re.DOTALL,
)
_CLASS_TOKEN = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?|\]|.", re.DOTALL)
_WIDE = re.compile(r"\\[XR1-9]")
_BROAD = re.compile(r"\.|\\[WDSpP]|\[.*?(\^|\\[WDSpPxu]|[^\x00-\x7f])", re.DOTALL)
"""What matches characters of one and of two places: for Java, counting those takes stack as well."""


def checked_regex(regex: str) -> str:
    """Spark compiles it, as Java does; here is said what is plainly broken, and by what a long value could kill a driver."""

    def refuse(why: str) -> ValueError:
        return ValueError(f"'{regex}' {why}")

    if "(?P" in regex:
        raise refuse("is Python's spelling; Spark takes Java's: (?<name>…) for (?P<name>…)")
    inside: list[float] = [1]  # for each open group: how often something in it repeats
    atom: float | None = None  # the same for the last atom: 0 for a single character, None where no atom stands
    start = place = 0
    while place < len(regex):
        token = _REGEX_TOKEN.match(regex, place)
        assert token is not None
        begin, place = place, token.end()
        match token.lastgroup:
            case "open":
                inside.append(1)
                atom = None
            case "close":
                if len(inside) == 1:
                    raise refuse("closes a group that is not open")
                atom = inside.pop()
                inside[-1] = max(inside[-1], atom)
            case "class":
                place = _end_of_class(regex, place)
                if place < 0:
                    raise refuse("does not close a [")
                start, atom = begin, 0
            case "mode":
                if atom is None:
                    raise refuse(f"repeats nothing by '{token.group()}'")
                times = 1 if token["mode"] == "+" else _most(token["times"])
                is_counted = "{" in token["times"] and _BROAD.match(regex[start:begin])
                if (atom and atom * times > MAX_REPEATS) or (not atom and is_counted and times > 20 * MAX_REPEATS):
                    instead = f"'{token['times']}+' (possessive) or at most {{0,{MAX_REPEATS}}}"
                    raise refuse(f"could exhaust the stack at a long value, by '{token.group()}': write {instead}")
                inside[-1] = max(inside[-1], atom * times if atom else 1)
                atom = None
            case "atom" if token.group() in ("{", "\\"):
                raise refuse("has a '{' that repeats nothing: write '\\{'" if token.group() == "{" else "ends with a backslash")
            case "atom":
                start, atom = begin, None if token.group() == "|" else 1 if _WIDE.match(token.group()) else 0
    if len(inside) > 1:
        raise refuse("does not close a (")
    return regex


def _end_of_class(regex: str, place: int) -> int:
    depth = 1
    for token in _CLASS_TOKEN.finditer(regex, place):
        depth += token.group().startswith("[") - (token.group() == "]")
        if not depth:
            return token.end()
    return -1


def _most(times: str) -> float:
    if times in "*+":
        return math.inf
    if times == "?":
        return 1
    *_, most = times.strip("{}").split(",")
    return int(most) if most else math.inf
