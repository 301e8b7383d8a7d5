"""The report site: whatever messages hold is text on it, it stays small, and its links lead somewhere."""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import Page

from quality.reports import bar_picture, prove_inert, write_site
from weir.look.charts import Frame
from weir.pipeline import Pipeline
from weir.records.quality import DayQuality, Drift, ExpectationResult, GateReport, Sample

ROOT = Path(__file__).resolve().parents[2]
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = "2026-03-01"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</pre></details></table></main><iframe src=https://evil.example>",
    "</style><style>@import 'https://evil.example/x.css'",
    "</title><base href=https://evil.example>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% include 'day.html' %}",
    "<!-- &lt;b&gt; &amp; ]]>",
    "x" * 1_000_000,
    "a\x00b\x08c\x1b[31md\x7fe\x85f",
    "\u202egpj.exe \u2066\u200b\ufeff\U000e0041",
    "\r\n\t\u2028line",
]


def read(file: Path) -> Page:
    html = file.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]", html)
    page = Page(html)
    page.must_be_inert()
    return page


def day_quality(stream: str = "orders", day: str = DAY, **fields: Any) -> DayQuality:
    counts = {"batches": 3, "rows": 12_345, "accepted": 12_000, "duplicates": 45, "rejected": 250, "undecodable": 50}
    return DayQuality(stream=stream, day=day, **(counts | fields))


def days_until(last: str, count: int, stream: str = "orders") -> dict[str, DayQuality]:
    days = [(date.fromisoformat(last) - timedelta(days=back)).isoformat() for back in range(count)]
    return {day: day_quality(stream, day) for day in days}


def full_of(word: str) -> DayQuality:
    """A day with this word in every field that can hold one."""
    sample = Sample(place=word, received_at=AT, row={word: word, "order_id": None}, payload=word)
    unread = Sample(place=word, received_at=AT, row={}, payload=word)
    result = ExpectationResult(
        expectation=word,
        rule=word,
        arguments={word: word, "nested": [{word: [word]}], "min_value": 1.5},
        severity="critical",
        success=False,
    )
    return day_quality(
        reasons={word: 7, "amount:be_between": 3},
        samples={word: [sample, unread], f"only a sample {word[:2000]}": [sample]},
        results=[
            result.model_copy(update={"observed": word, "unexpected": 4, "checked": 4_000}),
            result.model_copy(update={"error": word, "severity": "warning"}),
            result.model_copy(update={"success": True, "severity": "info"}),
        ],
        drift=[Drift(kind="renamed_field", field=word, detail=word, rows=2), Drift(kind="new_value", field=word, detail=word, rows=1)],
    )


def gate_full_of(word: str) -> GateReport:
    day = full_of(word)
    return GateReport(
        stream=word,
        batch=4_211,
        decision="BLOCK",
        reasons=[word, "second reason"],
        rows=1_821,
        accepted=1_733,
        duplicates=6,
        rejected=80,
        undecodable=2,
        broken={word: 80},
        results=day.results,
        drift=day.drift,
        written_at=AT,
        seconds=1.5,
    )


def write_hostile(folder: Path, shop: Pipeline, word: str) -> tuple[Page, Page]:
    index = write_site(folder, shop, {"orders": {DAY: full_of(word)}}, {"orders": gate_full_of(word)})
    return read(index), read(folder / "orders" / f"{DAY}.html")


def visible(word: str) -> str:
    """What a reader must find of a word: its beginning, with signs that cannot be seen spelled out."""
    signs = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x00\x08\x1b\x7f\x85\u202e\u2066\u200b\ufeff\U000e0041\r\u2028"}
    return word[:60].translate(signs)


@pytest.mark.parametrize("word", HOSTILE, ids=lambda word: re.sub(r"\W+", "_", ascii(word[:30])))
def test_a_hostile_value_is_text_in_every_field(tmp_path: Path, shop: Pipeline, word: str) -> None:
    index, day = write_hostile(tmp_path / "hostile", shop, word)
    harmless = write_hostile(tmp_path / "harmless", shop, "harmless")
    assert (index.skeleton, day.skeleton) == (harmless[0].skeleton, harmless[1].skeleton)
    assert visible(word) in index.text
    assert day.text.count(visible(word)) >= 15
    assert sum(file.stat().st_size for file in tmp_path.glob("hostile/**/*.html")) < 250_000


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=st.text(min_size=1, max_size=40))
def test_no_text_changes_the_structure_of_a_page(tmp_path: Path, shop: Pipeline, word: str) -> None:
    try:
        record = full_of(word).model_dump_json()
    except ValueError:  # no record can hold half a surrogate pair, so none reaches a page
        return
    write_site(tmp_path, shop, {"orders": {DAY: DayQuality.model_validate_json(record)}}, {})
    page = Page((tmp_path / "orders" / f"{DAY}.html").read_text(encoding="utf-8"))
    page.must_be_inert()
    assert [tag for tag, _ in page.tags].count("pre") == 4
    write_site(tmp_path, shop, {"orders": {DAY: full_of("harmless")}}, {})
    assert page.skeleton == Page((tmp_path / "orders" / f"{DAY}.html").read_text(encoding="utf-8")).skeleton


def test_a_page_without_end_is_cut(tmp_path: Path, shop: Pipeline) -> None:
    sample = Sample(place="p", received_at=AT, row={f"c{i}": "v" * 10_000 for i in range(1_000)}, payload="p" * 100_000)
    flood = day_quality(
        reasons={f"rule_{i}": i for i in range(5_000)},
        samples={f"rule_{i}": [sample] * 20 for i in range(4_995, 5_000)},
        results=[
            ExpectationResult(expectation=f"e{i}", rule=f"r{i}", arguments={"value_set": ["v"] * 9_999}, severity="info", success=True)
            for i in range(2_000)
        ],
        drift=[Drift(kind="new_field", field=f"f{i}", detail="d", rows=1) for i in range(2_000)],
    )
    gate = gate_full_of("x").model_copy(update={"reasons": [f"reason {i}" for i in range(5_000)]})
    index = write_site(tmp_path, shop, {"orders": {DAY: flood}}, {"orders": gate})
    page = read(tmp_path / "orders" / f"{DAY}.html")
    assert "and 4,900 more rules" in page.text
    assert "and 1,900 more expectations" in page.text
    assert "and 4,900 more" in read(index).text
    assert (tmp_path / "orders" / f"{DAY}.html").stat().st_size < 1_500_000
    assert index.stat().st_size < 100_000


def test_every_link_of_a_site_leads_to_a_page(tmp_path: Path, shop: Pipeline) -> None:
    quality = {"orders": days_until(DAY, 31), "customers": days_until("2026-02-20", 5, "customers")}
    write_site(tmp_path, shop, quality, {})
    files = list(tmp_path.rglob("*.html"))
    assert len(files) == 1 + 31 + 5
    for file in files:
        for link in read(file).links():
            assert link == "data:," or (file.parent / link).is_file(), (file, link)
    assert f"orders/{DAY}.html" in read(tmp_path / "index.html").links()


def test_a_month_is_kept_and_older_pages_go_with_all_that_belongs_to_them(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": days_until("2026-01-31", 31)}, {})
    folder = tmp_path / "orders"
    for name in ("2026-01-01-gx.html", ".2026-01-01.html.abcd1234", "2026-01-31-gx.html", "notes.html", "2026-01-01.txt"):
        (folder / name).write_text("x")
    write_site(tmp_path, shop, {"orders": days_until("2026-02-10", 41)}, {})
    days = sorted(days_until("2026-02-10", 31))
    pages = [f"{day}.html" for day in days]
    assert sorted(file.name for file in folder.iterdir()) == sorted([*pages, "2026-01-31-gx.html", "notes.html", "2026-01-01.txt"])
    assert "no earlier day" in read(folder / f"{days[0]}.html").text


def test_pages_of_a_stream_that_is_no_longer_declared_go(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": days_until(DAY, 2), "clicks": days_until(DAY, 2, "clicks")}, {})
    smaller = shop.model_copy(update={"streams": {"orders": shop.streams["orders"]}})
    write_site(tmp_path, smaller, {"orders": days_until(DAY, 2), "clicks": days_until(DAY, 2, "clicks")}, {})
    assert [file.parent.name for file in tmp_path.rglob("2026*.html")] == ["orders", "orders"]


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(file.relative_to(folder)): (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.rglob("*.html")}


def test_only_changed_days_and_the_index_are_written(tmp_path: Path, shop: Pipeline) -> None:
    quality = {"orders": days_until(DAY, 31), "clicks": days_until(DAY, 31, "clicks")}
    write_site(tmp_path, shop, quality, {})
    before = stamps(tmp_path)
    quality["orders"][DAY] = day_quality(rows=99_999)
    write_site(tmp_path, shop, quality, {}, changed=[("orders", DAY)])
    after = stamps(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"index.html", f"orders/{DAY}.html"}
    assert "99,999" in read(tmp_path / "orders" / f"{DAY}.html").text
    assert after.keys() == before.keys()


def test_a_new_day_is_linked_from_the_day_before_and_a_removed_one_from_none(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": days_until("2026-03-01", 31)}, {})
    before = stamps(tmp_path)
    write_site(tmp_path, shop, {"orders": days_until("2026-03-02", 31)}, {}, changed=[("orders", "2026-03-02")])
    after = stamps(tmp_path)
    written = {name for name in after if after[name] != before.get(name)}
    assert written == {"index.html", "orders/2026-03-02.html", "orders/2026-03-01.html", "orders/2026-01-31.html"}
    assert "2026-03-02.html" in read(tmp_path / "orders" / "2026-03-01.html").links()
    assert "2026-01-30.html" not in read(tmp_path / "orders" / "2026-01-31.html").links()


def test_pages_that_are_not_there_yet_are_written_whatever_changed(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": days_until(DAY, 3)}, {}, changed=[])
    assert len(list(tmp_path.glob("orders/*.html"))) == 3


def test_the_page_of_great_expectations_is_linked_where_it_is(tmp_path: Path, shop: Pipeline) -> None:
    quality = {"orders": days_until(DAY, 2)}
    write_site(tmp_path, shop, quality, {})
    assert f"{DAY}-gx.html" not in read(tmp_path / "orders" / f"{DAY}.html").links()
    (tmp_path / "orders" / f"{DAY}-gx.html").write_text("x")
    write_site(tmp_path, shop, quality, {}, changed={("orders", DAY)})
    assert f"{DAY}-gx.html" in read(tmp_path / "orders" / f"{DAY}.html").links()


def test_pages_are_whole_and_for_their_owner(tmp_path: Path, shop: Pipeline) -> None:
    index = write_site(tmp_path / "deep" / "site", shop, {"orders": days_until(DAY, 2)}, {})
    assert index == tmp_path / "deep" / "site" / "index.html"
    files = [file for file in (tmp_path / "deep").rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".html"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": days_until(DAY, 1)}, {})
    before = stamps(tmp_path)
    (tmp_path / "clicks").write_text("a file where a folder must be")
    with pytest.raises(OSError):
        write_site(tmp_path, shop, {"clicks": days_until(DAY, 1, "clicks"), "orders": days_until(DAY, 1)}, {}, changed=[])
    assert stamps(tmp_path) == before
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("day", ["../../etc", "20260301", "2026-W09-7", "today", "2026-02-30", ""])
def test_what_is_no_day_names_no_page(tmp_path: Path, shop: Pipeline, day: str) -> None:
    with pytest.raises(ValueError):
        write_site(tmp_path, shop, {"orders": {day: day_quality()}}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_site_without_any_day_says_so(tmp_path: Path, shop: Pipeline) -> None:
    page = read(write_site(tmp_path / "site", shop, {}, {}))
    assert "nothing has arrived yet" in page.text
    assert page.text.count("Nothing has arrived in the last 30 days.") == len(shop.sources)


def test_a_day_on_which_nothing_arrived_says_so(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": {DAY: DayQuality(stream="orders", day=DAY)}}, {})
    text = read(tmp_path / "orders" / f"{DAY}.html").text
    assert "Nothing arrived on this day" in text
    assert "No row was set aside." in text
    assert "–" in read(tmp_path / "index.html").text


def test_a_stream_that_is_silent_today_shows_its_last_day(tmp_path: Path, shop: Pipeline) -> None:
    write_site(tmp_path, shop, {"orders": days_until(DAY, 1), "clicks": days_until("2026-02-20", 1, "clicks")}, {})
    text = " ".join(read(tmp_path / "index.html").text.split())
    assert f"Nothing arrived on {DAY}; last on 2026-02-20" in text


def test_blocked_gates_stand_above_everything(tmp_path: Path, shop: Pipeline) -> None:
    gate = gate_full_of("amount:be_between: 80 rows break it")
    page = read(write_site(tmp_path, shop, {"orders": days_until(DAY, 1)}, {"orders": gate}))
    text = " ".join(page.text.split())
    assert text.index("BLOCKED orders, micro-batch 4,211 amount:be_between: 80 rows break it second reason") < text.index(
        "Streams Counts of"
    )
    assert "1,821 rows are held back" in text
    assert ("section", {"class": "loud", "role": "alert"}) in page.tags
    assert "BLOCKED" not in read(write_site(tmp_path, shop, {"orders": days_until(DAY, 1)}, {})).text


def test_numbers_have_separators_and_shares_never_flatter(tmp_path: Path, shop: Pipeline) -> None:
    almost = day_quality(rows=1_000_000, accepted=999_999, duplicates=0, rejected=1, undecodable=0, reasons={"amount:be_between": 1})
    write_site(tmp_path, shop, {"orders": {DAY: almost}}, {})
    text = read(tmp_path / "orders" / f"{DAY}.html").text
    assert "999,999" in text
    assert "accepted, 99.9 %" in text
    assert "rejected, < 0.1 %" in text
    assert "100.0 %" not in text


@pytest.mark.parametrize(("rows", "said"), [(12_345, None), (12_346, "1 rows have no fate"), (12_344, "1 rows more than came in")])
def test_a_day_that_does_not_balance_says_so(tmp_path: Path, shop: Pipeline, rows: int, said: str | None) -> None:
    write_site(tmp_path, shop, {"orders": {DAY: day_quality(rows=rows)}}, {})
    text = read(tmp_path / "orders" / f"{DAY}.html").text
    assert (said in text) if said else ("does not balance" not in text)


def test_expectations_that_are_not_met_come_first(tmp_path: Path, shop: Pipeline) -> None:
    def result(rule: str, **fields: Any) -> ExpectationResult:
        return ExpectationResult(
            **({"expectation": rule, "rule": rule, "arguments": {}, "severity": "critical", "success": False} | fields)
        )

    results = [
        result("expect_met", success=True),
        result("expect_info", severity="info"),
        result("expect_warning", severity="warning"),
        result("expect_critical"),
    ]
    write_site(tmp_path, shop, {"orders": {DAY: day_quality(results=results)}}, {})
    text = read(tmp_path / "orders" / f"{DAY}.html").text
    assert re.findall(r"expect_\w+", text) == ["expect_critical", "expect_warning", "expect_info", "expect_met"]
    assert "1 of 4 met" in text


def picture(days: dict[str, DayQuality], here: str = DAY) -> Any:
    month = [(date.fromisoformat(here) - timedelta(days=back)).isoformat() for back in range(29, -1, -1)]
    return bar_picture(month, days, Frame(1000, 200, left=40, right=960, top=20, bottom=180), here=here)


def test_a_day_without_rows_breaks_the_line_and_leaves_its_place_empty() -> None:
    days = days_until(DAY, 30)
    del days["2026-02-20"]
    days["2026-02-10"] = DayQuality(stream="orders", day="2026-02-10")
    drawn = picture(days)
    assert [len(line) for line in drawn.lines] == [10, 9, 9]
    assert [bar.parts == [] for bar in drawn.bars].count(True) == 2
    assert len(drawn.bars) == 30


@pytest.mark.parametrize("make", [lambda: {}, lambda: days_until(DAY, 1), lambda: days_until(DAY, 31), lambda: {DAY: day_quality(rows=0)}])
def test_nothing_is_drawn_outside_of_its_frame(make: Callable[[], dict[str, DayQuality]]) -> None:
    drawn = picture(make())
    for bar in drawn.bars:
        assert 40 <= bar.left <= bar.x <= bar.x + bar.width <= bar.left + bar.step <= 960.001
        assert all(part.y >= 20 and part.y + part.height <= 180.001 for part in bar.parts)
    assert all(20 <= y <= 180 for line in drawn.lines for _, y in line)
    assert [bar.here for bar in drawn.bars] == [False] * 29 + [True]


@pytest.mark.parametrize(
    ("rows", "labels"), [(0, ["0", "1", "2", "3", "4"]), (7, ["0", "2", "4", "6", "8"]), (52_000, ["0", "15k", "30k", "45k", "60k"])]
)
def test_the_axis_of_rows_has_whole_steps(rows: int, labels: list[str]) -> None:
    counts = {"rows": rows, "accepted": rows, "duplicates": 0, "rejected": 0, "undecodable": 0}
    assert [tick.label for tick in picture({DAY: day_quality(**counts)}).rows_axis] == labels


@pytest.mark.parametrize(
    "part",
    [
        "<script>1</script>",
        "<SCRIPT src=x>",
        "<img>",
        "<svg>",
        "<p onclick=x>",
        "<p style=color:red>",
        "<iframe srcdoc=x>",
        "<a href=https://evil.example>",
        "<a href=//evil.example>",
        "<a href='java&#115;cript:alert(1)'>",
        "<link href=http://evil.example>",
        "<br/onload=x>",
    ],
)
def test_the_proof_refuses_what_could_load_run_or_lead_outside(part: str) -> None:
    prove_inert('<p class="x">text <a href="../index.html">&lt;script&gt; https://evil.example</a></p>')
    with pytest.raises(RuntimeError, match="it is not written"):
        prove_inert(f"<p>before</p>{part}<p>after</p>")


def test_the_site_is_written_without_waiting_for_great_expectations() -> None:
    code = "import sys, quality.reports; print({m.split('.')[0] for m in sys.modules} & {'great_expectations', 'pyspark', 'pandas'})"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.strip() == "set()", found.stdout + found.stderr
