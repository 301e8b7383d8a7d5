"""Answers as CSV and as pictures: what is drawn by itself, what a person chooses, what no spreadsheet may run."""

import csv
import io
from typing import Any

import pytest

from weir.answers import PlainAnswer, PlainColumn, csv_lines, kind_of, plain_answer
from weir.look.answers import MOST_BARS, Choice, choose, draw, value_range


def answer(rows: list[list[Any]], **kinds: str) -> PlainAnswer:
    return PlainAnswer(columns=[PlainColumn(name=name, kind=kind) for name, kind in kinds.items()], rows=rows)


BY_MINUTE = answer(
    [[f"2026-03-01 12:0{minute}:00", country, "1.50", minute, "proved"] for minute in range(4) for country in ("DE", "FR")],
    minute="time",
    country="text",
    revenue="number",
    orders="number",
    status="text",
)


def test_a_time_and_a_number_are_lines_one_for_each_of_a_few_texts() -> None:
    assert choose(BY_MINUTE) == Choice("minute", "revenue", "country")
    picture = draw(BY_MINUTE, Choice("minute", "revenue", "country"))
    assert picture and [series.name for series in picture.series] == ["DE", "FR"]
    assert all(len(series.lines[0]) == 4 for series in picture.series)


def test_a_person_chooses() -> None:
    assert choose(BY_MINUTE, y="orders", colour="-") == Choice("minute", "orders", "")
    assert choose(BY_MINUTE, x="country") == Choice("country", "revenue", "", is_line=False)
    assert choose(BY_MINUTE, x="nothing", y="country", colour="orders") == Choice("minute", "revenue", "country"), (
        "what cannot be drawn is not"
    )


def test_of_nine_texts_the_largest_are_drawn_and_a_status_alone_is_no_colour() -> None:
    many = answer(
        [["2026-03-01", str(place), place, "proved" if place else "repaired"] for place in range(9)],
        day="time",
        name="text",
        n="number",
        status="text",
    )
    choice = choose(many)
    assert choice == Choice("day", "n", "name")
    picture = draw(many, choice)
    assert picture and [own.name for own in picture.series] == [str(place) for place in range(1, 9)] and picture.left_out == 1
    assert choose(many, colour="status") == Choice("day", "n", "status")
    crowd = answer([["2026-03-01", str(place), place] for place in range(201)], day="time", name="text", n="number")
    assert choose(crowd) == Choice("day", "n", ""), "a column of names is no colour"


def test_other_answers_are_bars_or_nothing() -> None:
    best = answer([["DE", 5], ["FR", -3], [None, None]], country="text", orders="number")
    choice = choose(best)
    assert choice == Choice("country", "orders", "", is_line=False)
    picture = draw(best, choice)
    assert picture and [bar.title for bar in picture.bars] == ["DE: 5", "FR: -3"]
    assert (
        choose(answer([["a"]], name="text")) is None
        and choose(answer([], n="number")) is None
        and choose(answer([[1]], n="number")) is None
    )
    long = answer([[str(place), place] for place in range(100)], name="text", n="number")
    picture = draw(long, Choice("name", "n", "", is_line=False))
    assert picture and len(picture.bars) == MOST_BARS and picture.left_out == 60


def test_strange_numbers_do_not_break_a_picture() -> None:
    strange = answer([["2026-03-01", "nan"], ["no day", 1], [None, 2], ["2026-03-02", 1e300], ["2026-03-03", None]], day="time", n="number")
    picture = draw(strange, Choice("day", "n"))
    assert picture and len(picture.series[0].lines[0]) == 1
    assert draw(answer([["x", "nan"]], day="time", n="number"), Choice("day", "n")) is None
    assert value_range([0.0]) == (0.0, 1.0) and value_range([-2.0]) == (-2.0, 0.0) and value_range([0.1, 0.25])[1] >= 0.25


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_is_a_formula(text: str) -> None:
    lines = "".join(csv_lines(answer([[text, "-1.5", -2]], **{"=name": "text", "n": "number", "m": "number"})))
    assert list(csv.reader(io.StringIO(lines, newline=""))) == [["'=name", "n", "m"], [f"'{text}", "-1.5", "-2"]]


def test_kinds_and_names() -> None:
    kinds = [
        kind_of(own)
        for own in ("DECIMAL(22,2)", "HUGEINT", "UBIGINT", "DOUBLE", "DATE", "TIMESTAMP WITH TIME ZONE", "INTEGER[]", "VARCHAR", "BOOLEAN")
    ]
    assert kinds == ["number"] * 4 + ["time"] * 2 + ["text"] * 3
    twice = plain_answer(["a", "a"], ["INTEGER", "INTEGER"], [(2**60, "x" * 5_000)])
    assert [column.name for column in twice.columns] == ["a", "a:1"]
    assert twice.rows[0][0] == str(2**60), "no number loses digits on its way"
    assert str(twice.rows[0][1]).endswith("… (5,000 characters)")
