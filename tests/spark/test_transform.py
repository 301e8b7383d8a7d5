"""What each message becomes: decoded, cleaned, judged. The rows go through a batch and through a stream alike."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import oracle
import pytest
from events import NOON, iso, message, order
from oracle import Message
from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs.transform import MESSAGE, accepted_rows, judged_rows, mark_first
from weir.pipeline import Column, Pipeline, Stream


def closed_frame(spark: SparkSession, messages: list[Message]) -> DataFrame:
    rows = [(m.topic, m.partition, m.offset, m.received_at, m.value) for m in messages]
    return spark.createDataFrame(rows, MESSAGE).coalesce(1)


def judge_as_batch(spark: SparkSession, stream: Stream, messages: list[Message], folder: Path) -> list[Row]:
    return judged_rows(closed_frame(spark, messages), stream).collect()


def judge_as_stream(spark: SparkSession, stream: Stream, messages: list[Message], folder: Path) -> list[Row]:
    closed_frame(spark, messages).write.parquet(str(folder / "in"))
    live = spark.readStream.schema(MESSAGE).parquet(str(folder / "in"))
    name = f"judged_{folder.name.replace('-', '_')}"
    query = judged_rows(live, stream).writeStream.format("memory").queryName(name).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return spark.table(name).collect()


GOOD = order()
TEXT = json.dumps(GOOD)

UNDECODABLE = {
    "tombstone": (None, "tombstone"),
    "zero bytes": (b"", "empty"),
    "blanks": (b" \n\t ", "empty"),
    "empty object": (b"{ }", "empty"),
    "not json": (b"hello", "not_json"),
    "null document": (b"null", "not_json"),
    "array": (b"[1, 2]", "not_json"),
    "number": (b"5", "not_json"),
    "truncated": (TEXT[:-9].encode(), "not_json"),
    "byte order mark": (("\ufeff" + TEXT).encode(), "not_json"),
    "deep nesting": (("[" * 1200 + "]" * 1200).encode(), "not_json"),
    "two documents": ((TEXT + TEXT).encode(), "trailing_data"),
    "two documents, newline": ((TEXT + "\n" + TEXT).encode(), "trailing_data"),
    "document and more fields": ((TEXT + ', "b": 1}').encode(), "trailing_data"),
    "document and garbage": ((TEXT + " tail").encode(), "trailing_data"),
    "document and garbage brace": ((TEXT + " tail}").encode(), "trailing_data"),
    "key twice": (TEXT.replace("{", '{"order_id": "o-0", ', 1).encode(), "duplicate_key"),
    "key twice, same value": (TEXT.replace("{", f'{{"order_id": "{GOOD["order_id"]}", ', 1).encode(), "duplicate_key"),
    "not utf-8": (TEXT.replace("DE", "D\u00e9").encode("latin-1"), "not_utf8"),
    "number as string": (json.dumps(order(customer_id="7")).encode(), "wrong_type"),
    "fraction for a whole number": (json.dumps(order(customer_id=7.5)).encode(), "wrong_type"),
    "beyond a bigint": (json.dumps(order(customer_id=2**63)).encode(), "wrong_type"),
    "object for a number": (json.dumps(order(customer_id={"id": 7})).encode(), "wrong_type"),
    "boolean for a number": (json.dumps(order(customer_id=True)).encode(), "wrong_type"),
    "NaN": (TEXT.replace("7", "NaN", 1).encode(), "not_json"),
    "Infinity": (TEXT.replace("7", "-Infinity", 1).encode(), "not_json"),
    "single quotes": (TEXT.replace('"', "'").encode(), "wrong_type"),
}

REJECTED = {
    "wrong key case": (
        {("Country" if k == "country" else k): v for k, v in GOOD.items()},
        ["contract:no_missing_field", "contract:no_unknown_field"],
    ),
    "missing field": ({k: v for k, v in GOOD.items() if k != "country"}, ["contract:no_missing_field"]),
    "unknown field": (order(extra=1), ["contract:no_unknown_field"]),
    "no identity": (order(None), ["identity:be_present"]),
    "no event time": (order() | {"ordered_at": None}, ["occurred_at:be_present"]),
    "epoch milliseconds": (order() | {"ordered_at": 1_772_366_400_000}, ["ordered_at:be_readable"]),
    "no zone": (order(at="2026-03-01T12:00:00"), ["ordered_at:be_readable"]),
    "only a time": (order(at="T12:00Z"), ["ordered_at:be_readable"]),
    "no such day": (order(at="2026-02-30T12:00:00Z"), ["ordered_at:be_readable"]),
    "year zero": (order(at="0000-01-01T00:00:00Z"), ["ordered_at:be_readable"]),
    "six minutes ahead": (order(at=NOON + timedelta(minutes=6)), ["occurred_at:not_be_future"]),
    "a clock that was never set": (order(at="1970-01-01T00:00:00Z"), ["occurred_at:not_be_absurd"]),
    "a year ahead": (order(at=NOON + timedelta(days=365)), ["occurred_at:not_be_future"]),
    "amount is no number": (order(amount="abc"), ["amount:not_be_null"]),
    "amount null": (order(amount=None), ["amount:not_be_null"]),
    "amount too large for its type": (order(amount="1e30"), ["amount:not_be_null"]),
    "amount negative": (order(amount="-0.01"), ["amount:be_between"]),
    "amount too high": (order(amount="100000.01"), ["amount:be_between"]),
    "unknown currency": (order(currency="DOGE"), ["currency:be_in_set"]),
    "country of three letters": (order(country="DEU"), ["country:match_regex"]),
    "two rules at once": (order(currency="X", amount="-1"), ["amount:be_between", "currency:be_in_set"]),
}

ACCEPTED = {
    "as declared": (GOOD, {}),
    "blanks around": (f"\n {TEXT} \r\n".encode(), {}),
    "to be cleaned": (order(country=" de ", amount="1,234.50", currency="eur "), {"country": "DE", "currency": "EUR"}),
    "country null is filled": (order(country=None), {"country": "ZZ"}),
    "five minutes ahead": (order(at=NOON + timedelta(minutes=5)), {}),
    "another zone": (order(at="2026-03-01T14:00:00+02:00"), {}),
    "bounds": (order(amount="100000"), {}),
    "keys in another order": (dict(reversed(GOOD.items())), {}),
    "emoji, right to left, NUL": (order("🛒\u05d0\u0000"), {"order_id": "🛒\u05d0\u0000"}),
    "large whole number": (order(customer_id=2**53 + 1), {"customer_id": 2**53 + 1}),
    "currency null passes its rule": (order(currency=None), {"currency": None}),
    "quotes and backslashes": (order('a","b":"c\\'), {"order_id": 'a","b":"c\\'}),
    "a number for a text": (order(5), {"order_id": "5"}),
}


def dense(document: object) -> bytes | None:
    """The same message without a blank behind colon and comma: plain messages are recognised in both spellings."""
    text = document if isinstance(document, bytes | None) else json.dumps(document).encode()
    return text and text.replace(b'": ', b'":').replace(b', "', b',"')


@pytest.mark.parametrize("judge", [judge_as_batch, judge_as_stream])
def test_every_message_gets_the_reason_that_it_deserves(
    spark: SparkSession, shop: Pipeline, judge: Callable[..., list[Row]], tmp_path: Path
) -> None:
    spaced = {**UNDECODABLE, **REJECTED, **ACCEPTED}
    cases = spaced if judge is judge_as_batch else {name: (dense(document), wanted) for name, (document, wanted) in spaced.items()}
    messages = [message(document, offset) for offset, (document, _) in enumerate(cases.values())]
    rows = {row["offset"]: row for row in judge(spark, shop.streams["orders"], messages, tmp_path)}
    assert len(rows) == len(cases), "no message may be dropped"
    found, expected = {}, {}
    for offset, (name, (_, wanted)) in enumerate(cases.items()):
        row = rows[offset]
        if name in ACCEPTED:
            found[name] = (row["_undecodable"], row["_verdict"], row["_accepted"], {column: row[column] for column in wanted})
            expected[name] = (None, [], True, wanted)
        else:
            found[name] = (row["_undecodable"], row["_verdict"], row["_accepted"])
            expected[name] = (wanted, None, False) if name in UNDECODABLE else (None, wanted, False)
    assert found == expected


def test_the_oracle_agrees_on_every_case(spark: SparkSession, shop: Pipeline, tmp_path: Path) -> None:
    for name, (document, _) in {**UNDECODABLE, **REJECTED, **ACCEPTED}.items():
        if name == "single quotes":
            continue
        kind = "undecodable" if name in UNDECODABLE else "rejected" if name in REJECTED else "accepted"
        assert oracle.fate_of("orders", message(document))[0] == kind, name


def test_a_megabyte_and_ten_thousand_keys_do_no_harm(spark: SparkSession, shop: Pipeline, tmp_path: Path) -> None:
    huge = message(order("x" * 1_000_000), 0)
    many = message(order() | {f"k{n}": n for n in range(10_000)}, 1)
    rows = {row["offset"]: row for row in judge_as_batch(spark, shop.streams["orders"], [huge, many], tmp_path)}
    assert rows[0]["_accepted"] and rows[1]["_verdict"] == ["contract:no_unknown_field"]


@pytest.mark.parametrize("with_rules", [True, False])
def test_a_message_is_read_once_whatever_the_rules(spark: SparkSession, shop: Pipeline, with_rules: bool) -> None:
    """Spark puts cheap conditions before the reading, and reads again for each field that they mention."""
    for stream in shop.streams.values():
        rules = stream.expectations if with_rules else []
        accepted = accepted_rows(closed_frame(spark, []), stream.model_copy(update={"expectations": rules}))
        plan = accepted._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json(") == 1, plan


def test_a_stream_of_many_columns_is_planned_as_fast_as_one_of_few(spark: SparkSession, shop: Pipeline) -> None:
    """Every batch is planned anew. What doubles with each column would not end before the tests' own limit."""
    orders = shop.streams["orders"]
    more = {f"field_{number}": Column(type="string") for number in range(22)}
    wide = orders.model_copy(update={"columns": orders.columns | more})
    sent = message(order() | dict.fromkeys(more, "x"), 0)
    assert accepted_rows(closed_frame(spark, [sent]), wide).count() == 1


def test_a_wrong_clock_is_corrected_by_when_it_sent(spark: SparkSession, shop: Pipeline) -> None:
    """An event occurred as long before its arrival as its device says it occurred before the sending."""
    columns = shop.streams["orders"].columns | {"sent": Column(type="timestamp", optional=True)}
    stream = shop.streams["orders"].model_copy(update={"columns": columns, "sent_at": "sent"})
    cases = {
        "an hour ahead": (NOON + timedelta(minutes=50), NOON + timedelta(hours=1), NOON - timedelta(minutes=10)),
        "never set": (datetime(1970, 1, 1, 0, 5, tzinfo=UTC), datetime(1970, 1, 1, 0, 6, tzinfo=UTC), NOON - timedelta(minutes=1)),
        "right": (NOON - timedelta(seconds=5), NOON, NOON - timedelta(seconds=5)),
        "sent before it occurred": (NOON - timedelta(seconds=5), NOON - timedelta(seconds=9), NOON - timedelta(seconds=5)),
        "not told": (NOON - timedelta(seconds=5), None, NOON - timedelta(seconds=5)),
    }
    documents = [order(name, at) | ({"sent": iso(sent)} if sent else {}) for name, (at, sent, _) in cases.items()]
    messages = [message(document, offset, NOON) for offset, document in enumerate(documents)]
    found = judged_rows(closed_frame(spark, messages), stream).selectExpr("order_id", "unix_millis(ordered_at) AS at", "_verdict").collect()
    assert {row["order_id"]: row["at"] for row in found} == {name: int(at.timestamp() * 1_000) for name, (*_, at) in cases.items()}
    assert all(row["_verdict"] == [] for row in found)


def test_the_first_by_arrival_is_kept_and_rejected_rows_shadow_nobody(spark: SparkSession, shop: Pipeline) -> None:
    later, earlier = NOON + timedelta(seconds=9), NOON
    messages = [
        message(order("a", amount="1"), 0, later),
        message(order("a", amount="2"), 1, earlier),
        message(order("b", amount="-1"), 2, earlier),
        message(order("b", amount="3"), 3, later),
        message(order("c", at=iso(NOON)), 4, earlier, partition=1),
        message(order("c", at=iso(NOON)), 4, earlier, partition=0),
        message(b"", 6),
        message(b"", 7),
    ]
    ranked = mark_first(judged_rows(closed_frame(spark, messages), shop.streams["orders"]), shop.streams["orders"])
    assert {(r["partition"], r["offset"]) for r in ranked.filter("_first").collect()} == {(0, 1), (0, 3), (0, 4)}
    assert ranked.count() == len(messages)
