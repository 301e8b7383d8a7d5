"""The shop once more in plain Python: what each message is, and what each view says. Written from the words of the
declaration, sharing no code with it, so that both would have to be wrong in the same way."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

Row = dict[str, Any]
Cells = dict[tuple[Any, ...], tuple[Any, ...]]
"""Grain value → the other values, in the order of the SQL."""


@dataclass(frozen=True)
class Message:
    topic: str
    partition: int
    offset: int
    received_at: datetime
    value: bytes | None


class Undecodable(Exception):
    pass


class Rejected(Exception):
    pass


def fate_of(stream: str, message: Message) -> tuple[str, Row | None]:
    """('accepted', its row), ('rejected', None) or ('undecodable', None)."""
    try:
        return "accepted", _STREAMS[stream](_document(message.value), message.received_at)
    except Undecodable:
        return "undecodable", None
    except Rejected:
        return "rejected", None


def first_of_each(stream: str, messages: Iterable[Message]) -> list[tuple[Message, Row]]:
    """The accepted messages without duplicates: of each identity the first that arrived."""
    accepted = [(m, row) for m in messages for fate, row in [fate_of(stream, m)] if fate == "accepted" and row is not None]
    first: dict[str, tuple[Message, Row]] = {}
    for message, row in sorted(accepted, key=lambda pair: (pair[0].received_at, pair[0].partition, pair[0].offset)):
        first.setdefault(row["identity"], (message, row))
    return list(first.values())


def counted_of(source: str, messages: Iterable[Message]) -> list[tuple[Message, Row]]:
    """What counts of a stream is the first of each identity, of a table every change; in the order of arrival."""
    if source not in TABLES:
        return first_of_each(source, messages)
    found = [(m, row) for m in messages for fate, row in [fate_of(source, m)] if fate == "accepted" and row is not None]
    return sorted(found, key=lambda pair: (pair[0].received_at, pair[0].partition, pair[0].offset))


# What a message is


def _document(value: bytes | None) -> Row:
    if value is None:
        raise Undecodable
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise Undecodable from None
    if text.startswith("\ufeff"):
        raise Undecodable

    def no_constant(_: str) -> None:
        raise Undecodable

    def no_key_twice(pairs: list[tuple[str, Any]]) -> Row:
        if len({key for key, _ in pairs}) != len(pairs):
            raise Undecodable
        return dict(pairs)

    try:
        document = json.loads(text, parse_constant=no_constant, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError):
        raise Undecodable from None
    if not isinstance(document, dict) or not document:
        raise Undecodable
    return document


def _fields(document: Row, types: dict[str, str], optional: frozenset[str] = frozenset()) -> Row:
    for name, kind in types.items():
        value = document.get(name)
        if value is None:
            continue
        if kind == "integer" and (type(value) is not int or not -(2**63) <= value < 2**63):
            raise Undecodable
        if kind == "small" and (type(value) is not int or not -(2**31) <= value < 2**31):
            raise Undecodable
    if set(document) - set(types) or set(types) - set(document) - optional:
        raise Rejected
    return {name: _text(document.get(name)) if types[name] == "text" else document.get(name) for name in types}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _time(text: Any, received_at: datetime) -> datetime:
    form = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)"
    if not isinstance(text, str) or not re.fullmatch(form, text) or text[:4] in ("0000", "9999"):
        raise Rejected
    try:
        occurred_at = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise Rejected from None
    if not received_at - timedelta(days=3650) <= occurred_at <= received_at + timedelta(minutes=5):
        raise Rejected
    return occurred_at


def _money(text: str | None) -> Decimal:
    try:
        amount = Decimal((text or "").replace(",", "").strip()).quantize(Decimal("0.01"), ROUND_HALF_UP)
    except InvalidOperation:
        raise Rejected from None
    if not 0 <= amount <= 100_000:
        raise Rejected
    return amount


def _must(condition: object) -> None:
    if not condition:
        raise Rejected


def _order(document: Row, received_at: datetime) -> Row:
    types = {"order_id": "text", "customer_id": "integer", "country": "text", "amount": "text", "currency": "text", "ordered_at": "text"}
    row = _fields(document, types)
    _must(row["order_id"] is not None)
    country = "ZZ" if row["country"] is None else row["country"].strip(" ").upper()
    currency = None if row["currency"] is None else row["currency"].strip(" ").upper()
    _must(re.fullmatch("[A-Z]{2}", country))
    _must(currency in (None, "EUR", "USD", "GBP"))
    at = _time(row["ordered_at"], received_at)
    return {"identity": row["order_id"], "at": at, "country": country, "amount": _money(row["amount"]), "customer_id": row["customer_id"]}


def _payment(document: Row, received_at: datetime) -> Row:
    row = _fields(document, {"payment_id": "text", "order_id": "text", "method": "text", "amount": "text", "paid_at": "text"})
    _must(row["payment_id"] is not None and row["order_id"] is not None)
    method = None if row["method"] is None else row["method"].strip(" ").lower()
    _must(method in (None, "card", "invoice", "wallet"))
    at, amount = _time(row["paid_at"], received_at), _money(row["amount"])
    return {"identity": row["payment_id"], "at": at, "method": method, "amount": amount, "order_id": row["order_id"]}


def _search(document: Row, received_at: datetime) -> Row:
    types = {"search_id": "text", "customer_id": "integer", "term": "text", "results": "small", "searched_at": "text"}
    row = _fields(document, types)
    _must(row["search_id"] is not None and row["term"] is not None)
    _must(row["results"] is None or row["results"] >= 0)
    term = re.sub(" +", " ", row["term"].strip(" ")).lower()
    _must(re.fullmatch(".{1,80}", term))
    return {"identity": row["search_id"], "at": _time(row["searched_at"], received_at), "term": term}


def _click(document: Row, received_at: datetime) -> Row:
    types = {"click_id": "text", "search_id": "text", "customer_id": "integer", "page": "text", "clicked_at": "text"}
    row = _fields(document, types, optional=frozenset({"search_id"}))
    _must(row["click_id"] is not None and row["customer_id"] is not None)
    page = None if row["page"] is None else row["page"].strip(" ").split("?")[0].lower()
    _must(page is None or page.startswith("/"))
    at = _time(row["clicked_at"], received_at)
    return {"identity": row["click_id"], "at": at, "customer_id": row["customer_id"], "search_id": row["search_id"], "page": page}


def _customer(document: Row, received_at: datetime) -> Row:
    types = {"customer_id": "integer", "email": "text", "country": "text", "segment": "text", "updated_at": "text"}
    row = _fields(document, types)
    _must(row["customer_id"] is not None)
    email = None if row["email"] is None else row["email"].strip(" ").lower()
    segment = None if row["segment"] is None else row["segment"].strip(" ").lower()
    _must(email is None or re.fullmatch("[^@ ]+@[^@ ]+", email))
    _must(segment in (None, "new", "regular", "loyal"))
    at = _time(row["updated_at"], received_at)
    return {"identity": row["customer_id"], "at": at, "segment": segment}


_STREAMS: dict[str, Callable[[Row, datetime], Row]] = {
    "orders": _order,
    "payments": _payment,
    "searches": _search,
    "clicks": _click,
    "customers": _customer,
}
TABLES = ("customers",)

# What the views say


def revenue_per_minute(orders: Iterable[Row]) -> Cells:
    cells: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, Decimal(0)])
    for order in orders:
        cell = cells[order["at"].replace(second=0, microsecond=0), order["country"]]
        cell[0] += 1
        cell[1] += order["amount"]
    return {grain: tuple(values) for grain, values in cells.items()}


def payments_per_hour(payments: Iterable[Row]) -> Cells:
    cells: dict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
    for payment in payments:
        cells[payment["at"].replace(minute=0, second=0, microsecond=0), payment["method"]].append(payment["amount"])
    return {grain: (len(amounts), sum(amounts), max(amounts)) for grain, amounts in cells.items()}


def visits(clicks: Iterable[Row]) -> Cells:
    times: dict[int, list[datetime]] = defaultdict(list)
    for click in clicks:
        times[click["customer_id"]].append(click["at"])
    cells: Cells = {}
    for customer, own in times.items():
        visit: list[datetime] = []
        for at in sorted(own):
            if visit and at > visit[-1] + timedelta(minutes=30):
                cells[visit[0], customer] = (len(visit), visit[0], visit[-1])
                visit = []
            visit.append(at)
        cells[visit[0], customer] = (len(visit), visit[0], visit[-1])
    return cells


def clicked_searches(searches: Iterable[Row], clicks: Iterable[Row]) -> Cells:
    by_search: dict[str, list[Row]] = defaultdict(list)
    for click in clicks:
        by_search[click["search_id"]].append(click)
    return {
        (search["at"], search["identity"], click["identity"]): (search["term"], click["page"], click["at"])
        for search in searches
        for click in by_search[search["identity"]]
        if timedelta(0) <= click["at"] - search["at"] <= timedelta(minutes=30)
    }


def paid_orders(orders: Iterable[Row], payments: Iterable[Row]) -> Cells:
    by_order: dict[str, list[Row]] = defaultdict(list)
    for payment in payments:
        by_order[payment["order_id"]].append(payment)
    cells: Cells = {}
    for order in orders:
        own = [p for p in by_order[order["identity"]] if timedelta(0) <= p["at"] - order["at"] <= timedelta(hours=2)]
        for payment in own or [{"identity": None, "amount": None}]:
            cells[order["at"], order["identity"], payment["identity"]] = (order["amount"], payment["amount"])
    return cells


def abandoned_carts(clicks: Iterable[Row]) -> Cells:
    checkouts: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
    rows = list(clicks)
    for click in rows:
        if click["page"] == "/checkout":
            checkouts[click["customer_id"]].append((click["at"], click["identity"]))
    cells: Cells = {}
    for click in rows:
        at, place, end = click["at"], (click["at"], click["identity"]), click["at"] + timedelta(minutes=30)
        if click["page"] == "/cart" and not any(place < own and own[0] <= end for own in checkouts[click["customer_id"]]):
            cells[end, click["customer_id"], click["identity"]] = (at, [click["identity"]])
    return cells


def revenue_per_segment(orders: Iterable[Row], customers: Iterable[Row]) -> Cells:
    changes: dict[int, list[Row]] = defaultdict(list)
    for change in customers:  # in the order of their arrival, which the sort keeps where two are of one moment
        changes[change["identity"]].append(change)
    cells: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, Decimal(0)])
    for order in orders:
        held = [own for own in sorted(changes[order["customer_id"]], key=lambda own: own["at"]) if own["at"] <= order["at"]]
        segment = held[-1]["segment"] if held else None
        cell = cells[order["at"].replace(minute=0, second=0, microsecond=0), segment or "unknown"]
        cell[0] += 1
        cell[1] += order["amount"]
    return {grain: tuple(values) for grain, values in cells.items()}


VIEWS: dict[str, tuple[tuple[str, ...], Callable[..., Cells]]] = {
    "revenue_per_minute": (("orders",), revenue_per_minute),
    "payments_per_hour": (("payments",), payments_per_hour),
    "visits": (("clicks",), visits),
    "clicked_searches": (("searches", "clicks"), clicked_searches),
    "paid_orders": (("orders", "payments"), paid_orders),
    "revenue_per_segment": (("orders", "customers"), revenue_per_segment),
    "abandoned_carts": (("clicks",), abandoned_carts),
}
"""View → the streams it reads and its truth."""


def truth(view: str, messages: Callable[[str], Iterable[Message]]) -> Cells:
    """What the view says of these messages, which are given for each stream and table."""
    streams, compute = VIEWS[view]
    return compute(*([row for _, row in counted_of(stream, messages(stream))] for stream in streams))
