"""A declaration that is wrong is refused in one line with its file and line and, where there is one, the nearest valid word."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.loader import load_named, load_pipeline, load_pipelines
from weir.pipeline import Pipeline, View
from weir.refusal import Refusal
from weir.sql_text import looks_beyond_its_day, normal_sql, relations_in

SHOP = Path(__file__).resolve().parents[2] / "pipelines" / "shop"
YAML = """\
pipeline: tiny
streams:
  orders:
    topic: tiny.orders
    identity: order_id
    occurred_at: ordered_at
    columns:
      order_id: string
      country: {type: string, clean: "upper(country)"}
      ordered_at: timestamp
    expectations:
      - expect_column_values_to_not_be_null: {column: country}
views:
  per_minute:
    grain: [minute]
"""
SQL = "SELECT window(ordered_at, '1 minute').start AS minute, count(*) AS n FROM orders GROUP BY window(ordered_at, '1 minute')\n"


def write(folder: Path, yaml: str = YAML, sql: str | None = SQL) -> Path:
    home = folder / "tiny"
    home.mkdir(exist_ok=True)
    (home / "pipeline.yaml").write_text(yaml)
    if sql is not None:
        (home / "per_minute.sql").write_text(sql)
    return home


def refusal(folder: Path, yaml: str, sql: str | None = SQL) -> str:
    with pytest.raises(Refusal) as refused:
        load_pipeline(write(folder, yaml, sql))
    return str(refused.value).replace(f"{folder}/tiny/", "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    topic: tiny", "    topik: tiny", "pipeline.yaml:4: unknown word 'topik' in streams.orders (did you mean 'topic'?)"),
        ("    identity: order_id\n", "", "pipeline.yaml:3: streams.orders needs 'identity'"),
        ("identity: order_id", "identity: order", "names column 'order', which is not declared (did you mean 'order_id'?)"),
        ("clean:", "cleen:", "pipeline.yaml:9: unknown word 'cleen' in streams.orders.columns.country (did you mean 'clean'?)"),
        ("order_id: string", "order_id: strin", "pipeline.yaml:8: streams.orders.columns.order_id.type: 'strin' is not a type"),
        ("ordered_at: timestamp", "ordered_at: string", "must be of type timestamp"),
        ("to_not_be_null", "to_not_be_nul", "pipeline.yaml:12: streams.orders.expectations.0: 'expect_column_values_to_not_be_nul' is no"),
        ("{column: country}", "{colum: country}", "unknown argument 'colum' (did you mean 'column'?)"),
        ("{column: country}", "{column: county}", "which is not declared (did you mean 'country'?)"),
        ("grain: [minute]", "grain: []", "pipeline.yaml:15: views.per_minute.grain"),
        ("grain:", "grian:", "(did you mean 'grain'?)"),
        ("  per_minute:", "  Per-Minute:", "is not a name"),
        ("pipeline: tiny", "pipeline: huge", "pipeline.yaml:1: the pipeline is called 'huge', its folder 'tiny'"),
        ("    topic: tiny.orders", "    topic: tiny.orders\n    topic: again", "pipeline.yaml:5: 'topic' stands twice"),
        ("    topic: tiny.orders", "    topic: [", "pipeline.yaml:6"),
        ("    topic: tiny.orders", "    topic: a b", "pipeline.yaml:4: streams.orders.topic"),
        (
            "    topic: tiny.orders",
            "    topic: !!python/object/apply:os.system ['true']",
            "pipeline.yaml:4: could not determine a constructor",
        ),
        ("    topic: tiny.orders", "    topic: &a t\n    lateness: *a", "aliases (*a) are not read"),
        (
            "    identity: order_id",
            "    lateness: soon\n    identity: order_id",
            "pipeline.yaml:5: streams.orders.lateness: 'soon' is not a duration",
        ),
        ("    topic: tiny.orders", "    topic: [a, a]", "topic 'a' is declared twice"),
        ("    topic: tiny.orders", "    topic: []", "pipeline.yaml:4: streams.orders.topic"),
        ("    identity:", "    sent_at: country\n    identity:", "sent_at names column 'country', which must be of type timestamp"),
        ("    identity:", "    sent_at: sent\n    identity:", "sent_at names column 'sent', which is not declared"),
        ("views:", "watch:\n  oders: {}\nviews:", "pipeline.yaml:14: watch.oders: 'oders' is no stream (did you mean 'orders'?)"),
        ("views:", "watch:\n  orders: {alert: {}}\nviews:", "unknown word 'alert' in watch.orders (did you mean 'alerts'?)"),
        ("order_id: string", "offset: string", "has the name of a coordinate"),
        ("pipeline: tiny", "- tiny", "pipeline.yaml"),
    ],
)
def test_a_wrong_declaration_says_where_and_what(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in refusal(tmp_path, YAML.replace(old, new, 1))


TABLE = """\
tables:
  places:
    topic: tiny.places
    key: country
    changed_at: at
    columns: {country: string, name: string, at: timestamp}
views:
  per_minute:
    grain: [minute]
    as_of: {places: country}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{places: country}", "{place: country}", "views.per_minute.as_of.place: 'place' is no table (did you mean 'places'?)"),
        ("{places: country}", "{places: county}", "none of its streams has a column 'county' (did you mean 'country'?)"),
        ("{country: string,", "{country: int,", "'country' is string in 'orders', the key of 'places' is int"),
        ("name: string", "valid_to: string", "column 'valid_to' has a name by which Weir tells of versions"),
    ],
)
def test_a_wrong_table_says_what(tmp_path: Path, old: str, new: str, said: str) -> None:
    whole = YAML.split("views:")[0] + TABLE
    load_pipeline(write(tmp_path, whole))
    assert said in refusal(tmp_path, whole.replace(old, new, 1))


def test_a_view_that_reads_a_table_is_told_how(tmp_path: Path) -> None:
    whole = YAML.split("views:")[0] + TABLE.replace("as_of: {places: country}", "reach: 1 hour")
    text = refusal(tmp_path, whole, "SELECT window(ordered_at, '1 minute').start AS minute FROM orders JOIN places USING (country)")
    assert "reads table 'places': declare `as_of: {places: <the column with its key>}`" in text


PATTERN = """\
views:
  seen_twice:
    pattern:
      of: orders
      by: country
      within: 5 minutes
      steps:
        - {when: "true", times: 2}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("of: orders", "of: oders", "views.seen_twice.pattern.of: 'oders' is no stream (did you mean 'orders'?)"),
        ("by: country", "by: county", "stream 'orders' has no column 'county' (did you mean 'country'?)"),
        ("within: 5 minutes", "within: 0 seconds", "views.seen_twice.pattern.within: must be at least"),
        ("times: 2", "times: none", "views.seen_twice.pattern.steps.0.times: times is a number"),
        ("times: 2", "times: 4-2", "times is a number from 1 to 100, a range like 2-4, or 3+"),
        ("times: 2", "times: 0", "times is a number from 1 to 100"),
        ("times: 2", "time: 2", "unknown word 'time' in views.seen_twice.pattern.steps.0 (did you mean 'times'?)"),
        ("when:", "not:", "what must not happen has no `times`"),
        ('{when: "true", times: 2}', '{not: "true"}', "its first step says `when`"),
        ('{when: "true", times: 2}', "{of: orders}", "a step says either `when` or `not`"),
        ("    pattern:", "    grain: [at]\n    pattern:", "a pattern has no `grain` of its own"),
        ("      steps:", "      step:", "needs 'steps'"),
    ],
)
def test_a_wrong_pattern_says_where_and_what(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = refusal(tmp_path, YAML.split("views:")[0] + PATTERN.replace(old, new, 1))
    assert said in text and re.match(r"pipeline\.yaml:(1[4-9]|2\d): ", text), text


def test_every_error_stands_on_a_line_of_its_own_and_none_shows_python(tmp_path: Path) -> None:
    text = refusal(tmp_path, YAML.replace("topic:", "topik:").replace("grain:", "grian:"))
    assert len(text.splitlines()) == 4  # two unknown words, two needed ones
    assert all(re.match(r"pipeline\.yaml:\d+: ", line) for line in text.splitlines())
    assert "Traceback" not in text and "pydantic" not in text


@pytest.mark.parametrize("content", [b"", b"\x00", b"\xff\xfe", b"[" * 10_000, b"a: " * 5, b"x" * 2_000_000, b"null", b"5"])
def test_garbage_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    home = write(tmp_path)
    (home / "pipeline.yaml").write_bytes(content)
    with pytest.raises(Refusal) as refused:
        load_pipeline(home)
    assert "pipeline.yaml" in str(refused.value) and len(str(refused.value)) < 300 + len(str(home))


@given(st.text(max_size=200))
def test_no_text_makes_the_loader_fail_otherwise_than_by_refusing(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "tiny"
        home.mkdir()
        (home / "pipeline.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(Refusal):
            load_pipeline(home)


def test_a_view_without_its_sql_file_names_the_file(tmp_path: Path) -> None:
    assert "view 'per_minute' needs its SQL in" in refusal(tmp_path, YAML, sql=None)


def test_a_view_that_reads_no_stream_is_refused(tmp_path: Path) -> None:
    assert "reads none of the streams (did you mean 'orders'?)" in refusal(tmp_path, YAML, "SELECT * FROM order")


def test_a_stream_may_arrive_on_several_topics(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, YAML.replace("topic: tiny.orders", "topic: [web.orders, app.orders]\n    partitions: 3")))
    assert pipeline.topics == {"web.orders": "orders", "app.orders": "orders"}
    assert pipeline.partitions == {"web.orders": 3, "app.orders": 3}
    assert pipeline.fingerprint("per_minute") != load_pipeline(write(tmp_path)).fingerprint("per_minute")


def test_a_watch_changes_no_number(tmp_path: Path) -> None:
    before = load_pipeline(write(tmp_path)).fingerprint("per_minute")
    watched = load_pipeline(write(tmp_path, YAML + "watch:\n  orders: {alerts: {abroad: \"country != 'DE'\"}}\n"))
    assert watched.watch["orders"].alerts == {"abroad": "country != 'DE'"} and watched.watch["orders"].rejected
    assert watched.fingerprint("per_minute") == before


@pytest.mark.parametrize(
    ("sql", "closed", "outer"),
    [
        ("SELECT window(at, '1 hour').start AS h FROM a GROUP BY window(at, '1 hour')", False, False),
        ("SELECT session_window(at, '1 hour').start AS h FROM a GROUP BY session_window(at, '1 hour')", True, False),
        ("SELECT * FROM a JOIN b ON a.x = b.x", False, False),
        ("SELECT * FROM a LEFT OUTER\n JOIN b ON a.x = b.x", True, True),
        ("SELECT * FROM a /* left join */ JOIN b ON a.x = 'left join'", False, False),
        ("SELECT count(*) FROM a JOIN b ON a.x = b.x GROUP BY window(at, '1 hour')", True, False),
    ],
)
def test_when_a_cell_is_told(sql: str, closed: bool, outer: bool) -> None:
    view = View(grain=["h"], sql=sql, reach=timedelta(hours=1))
    assert (view.is_told_when_closed, view.is_outer_join) == (closed, outer)


def test_norway_is_not_false(tmp_path: Path) -> None:
    yaml = YAML.replace("not_be_null: {column: country}", "be_in_set: {column: country, value_set: [NO, DE, on]}")
    stream = load_pipeline(write(tmp_path, yaml)).streams["orders"]
    assert stream.expectations[0].arguments.model_dump()["value_set"] == ["NO", "DE", "on"]


def test_one_broken_pipeline_does_not_hide_another(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pipeline.yaml").write_text("nonsense: [")
    assert load_named(tmp_path, "tiny").name == "tiny"
    with pytest.raises(Refusal):
        load_pipelines(tmp_path)
    with pytest.raises(Refusal, match="did you mean 'tiny'"):
        load_named(tmp_path, "tiny1")


# Fingerprints


def fingerprint(tmp_path: Path, yaml: str = YAML, sql: str = SQL) -> str:
    return load_pipeline(write(tmp_path, yaml, sql)).fingerprint("per_minute")


@pytest.mark.parametrize(
    ("yaml", "sql"),
    [
        (YAML, SQL.replace("count(*)", "count(country)")),
        (YAML.replace("upper(country)", "lower(country)"), SQL),
        (YAML.replace("string\n", "bigint\n"), SQL),
        (YAML.replace("to_not_be_null: {column: country}", "to_match_regex: {column: country, regex: a}"), SQL),
        (YAML.replace("tiny.orders", "tiny.other"), SQL),
        (YAML.replace("    columns", "    lateness: 1 hour\n    columns"), SQL),
        (YAML, SQL.replace("'1 minute'", "'2 minutes'")),
    ],
)
def test_what_can_change_the_numbers_changes_the_fingerprint(tmp_path: Path, yaml: str, sql: str) -> None:
    assert fingerprint(tmp_path, yaml, sql) != fingerprint(tmp_path)


def test_layout_and_comments_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    sql = "-- a remark\n" + SQL.replace(" FROM", "\n  /* here */ FROM")
    assert fingerprint(tmp_path, "# remark\n" + YAML, sql) == fingerprint(tmp_path)


def test_what_cannot_change_a_number_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    yaml = YAML.replace("    columns", "    partitions: 7\n    columns").replace('"upper(country)"}', '"upper(country)", private: true}')
    assert fingerprint(tmp_path, yaml) == fingerprint(tmp_path)


def test_another_view_or_stream_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    more = YAML + "  other:\n    grain: [minute]\n    sql: SELECT ordered_at AS minute FROM orders\n"
    assert fingerprint(tmp_path, more) == fingerprint(tmp_path)


# What a query reads, and how far it looks


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("select * from orders", ["orders"]),
        ("select * from orders o, payments as p where o.x = p.x", ["orders", "payments"]),
        ("select * from orders join clicks c on true left join `searches` using (x)", ["orders", "clicks", "searches"]),
        ("with c as (select * from orders) select 'from clicks' from c -- from payments", ["orders", "c"]),
        ("select count(*) as clicks from orders", ["orders"]),
    ],
)
def test_the_relations_of_a_query_are_found(sql: str, names: list[str]) -> None:
    assert relations_in(sql) == names


@pytest.mark.parametrize(
    ("sql", "beyond"),
    [
        ("select window(t, '1 minute') from o", None),
        ("select window(t, '1 hour', '5 minutes') from o", "hopping"),
        ("select window(t, '7 minutes') from o", "7 minutes"),
        ("select session_window(t, '5 minutes') from o", "session"),
        ("select 1 from a join b on a.x = b.x", "join"),
        ("select 'join' from a -- session_window", None),
        ("select 1 from a, b where a.x = b.x", "join"),
        ("select window(cast(t AS timestamp), '7 minutes') from o", "7 minutes"),
        ("select window(date_trunc('minute', t), '1 minute') from o", None),
    ],
)
def test_a_view_that_looks_beyond_its_day_is_known(sql: str, beyond: str | None) -> None:
    found = looks_beyond_its_day(sql)
    assert (found is None) if beyond is None else (found is not None and beyond in found)


def test_a_view_that_looks_beyond_its_day_must_say_how_far(tmp_path: Path) -> None:
    sql = SQL.replace("'1 minute'", "'1 hour', '1 minute'")
    assert "a hopping window looks beyond its day: declare how far, for example `reach: 1 hour`" in refusal(tmp_path, YAML, sql)
    assert load_pipeline(write(tmp_path, YAML + "    reach: 1 hour\n", sql)).views["per_minute"].reach.seconds == 3600


@given(st.text(alphabet="ab '\"-/*\n\\", max_size=40))
def test_normal_sql_is_its_own_normal_form(sql: str) -> None:
    assert normal_sql(normal_sql(sql)) == normal_sql(sql)


def test_the_shop_loads() -> None:
    shop = load_pipeline(SHOP)
    assert isinstance(shop, Pipeline) and shop.streams_of("revenue_per_minute") == ["orders"]
