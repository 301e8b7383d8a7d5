"""What a watch tells of rows: those that are rejected with their reasons, those that meet a condition with its name, and no others."""

import json

import pytest
from events import message, order
from oracle import Message
from pyspark.sql import SparkSession

from spark_jobs.cases_job import message_frame
from spark_jobs.watch import watched_rows
from weir.cases import CaseMessage
from weir.pipeline import Pipeline, Watch

SENT = [
    message(order("plain"), 0),
    message(order("big", amount="600.00"), 1),
    message(order("big and french", amount="700.00", country="fr"), 2),
    message(order("big but wrong", amount="800.00", currency="DOGE"), 3),
    message(b"hello", 4),
    message(order("no customer", customer_id=None), 5),
]
CONDITIONS = {"big": "amount >= 500", "french": "country = 'FR'", "never": "customer_id > 100"}


@pytest.mark.parametrize("with_rejected", [True, False])
def test_what_is_told(spark: SparkSession, shop: Pipeline, with_rejected: bool) -> None:
    pipeline = shop.model_copy(update={"watch": {"orders": Watch(rejected=with_rejected)}})
    frame = message_frame(spark, "shop.orders", [_as_case(own) for own in SENT])
    told = watched_rows(frame, pipeline, "orders", CONDITIONS).collect()
    found = {(row["topic"], row["key"]): json.loads(row["value"]) for row in told}
    alerts = {("shop.alerts", "big"): ["big"], ("shop.alerts", "big and french"): ["big", "french"]}
    rejected = {("shop.orders.rejected", "big but wrong"): ["currency:be_in_set"], ("shop.orders.rejected", None): ["undecodable:not_json"]}
    assert {place: own["alerts"] for place, own in found.items() if "alerts" in own} == alerts
    assert {place: own["reasons"] for place, own in found.items() if "reasons" in own} == (rejected if with_rejected else {})
    assert len(told) == len(found) == (4 if with_rejected else 2)
    assert found["shop.alerts", "big"]["row"]["amount"] == 600 and found["shop.alerts", "big"]["place"]["offset"] == 1


def test_a_watch_without_conditions_tells_what_is_rejected(spark: SparkSession, shop: Pipeline) -> None:
    frame = message_frame(spark, "shop.orders", [_as_case(own) for own in SENT])
    assert watched_rows(frame, shop, "orders", {}).count() == 2


def _as_case(sent: Message) -> CaseMessage:
    assert sent.value is not None
    return CaseMessage(sent.offset, sent.received_at, sent.value)
