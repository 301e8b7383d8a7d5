"""Great Expectations' own page of a real validation, with values in it that were made to break out of it."""

from typing import Any

import pytest
from pages import Page
from pyspark.sql import SparkSession

from quality.reports import data_docs_page

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table></body><iframe src=https://evil.example>",
    "<a href='javascript:alert(1)'>x</a>",
    "https://evil.example/x.js",
    "$column ${value_set} $$",
    "{{ 7 * 7 }} {% raw %}",
    "&lt;b&gt; & 'quoted' \\ \U00010600\U00010601",
    "a\x00b\x1b[31mc",
    "\u202egpj.exe",
    "x" * 1_000_000,
]
HARMLESS = [f"value {number}" for number in range(len(HOSTILE))]


def validated(spark: SparkSession, values: list[str]) -> Any:
    """One validation of these values by expectations of every kind that prints values: rows, sets, whole columns, pairs, broken ones."""
    import great_expectations as gx
    import great_expectations.expectations as gxe

    rows = [(number, value, float(number), f"{value} (private)") for number, value in enumerate(values)]
    frame = spark.createDataFrame(rows, "id int, currency string, amount double, email string").coalesce(1)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("source", persist=False)
    batch = source.add_dataframe_asset("asset").add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    expectations = [
        gxe.ExpectColumnValuesToBeInSet(column="currency", value_set=["EUR", values[0]]),
        gxe.ExpectColumnValuesToMatchRegex(column="currency", regex="^(?<!<img src=x>)[A-Z]{3}$", severity="warning"),
        gxe.ExpectColumnMostCommonValueToBeInSet(column="currency", value_set=["EUR"], ties_okay=True),
        gxe.ExpectColumnValuesToMatchRegex(column="email", regex="^[^@ ]+@"),
        gxe.ExpectColumnPairValuesToBeEqual(column_A="currency", column_B="email"),
        gxe.ExpectColumnMeanToBeBetween(column="amount", min_value=1_000, max_value=2_000),
        gxe.ExpectTableRowCountToBeBetween(min_value=1),
        gxe.ExpectColumnValuesToNotBeNull(column=values[0]),
    ]
    return batch.validate(gx.ExpectationSuite(name=f"orders {values[0]}", expectations=expectations), result_format="COMPLETE")


@pytest.fixture(scope="module")
def hostile_result(spark: SparkSession) -> Any:
    return validated(spark, HOSTILE)


def test_hostile_values_are_text_on_the_page_of_great_expectations(spark: SparkSession, hostile_result: Any) -> None:
    html = data_docs_page(hostile_result, title=f"orders {HOSTILE[1]}")
    page, harmless = Page(html), Page(data_docs_page(validated(spark, HARMLESS), title="orders"))
    assert [(tag, list(attributes)) for tag, attributes in page.tags] == [(tag, list(attributes)) for tag, attributes in harmless.tags]
    assert {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object", "embed", "form", "base", "svg", "button"} == set()
    assert {name for _, attributes in page.tags for name in attributes if name.startswith("on") or name in ("src", "style")} == set()
    assert {attributes["href"] for _, attributes in page.tags if "href" in attributes} == {"../index.html", "data:,"}
    assert "<script" not in html
    assert "default-src 'none'" in html


def test_each_value_is_shown_as_it_is_and_escaped_once(hostile_result: Any) -> None:
    page = Page(data_docs_page(hostile_result, title="orders"))
    for value in HOSTILE[:7]:
        assert " ".join(value.split()) in page.words
    assert "&lt;b&gt; & 'quoted' \\" in page.words
    assert "a\\u0000b\\u001b[31mc" in page.words
    assert "\\u202egpj.exe" in page.words
    assert "(1,000,000 characters)" in page.words
    assert "&amp;" not in page.words
    assert "^(?<!<img src=x>)[A-Z]{3}$" in page.words
    assert 0x10600 not in {ord(sign) for sign in page.words}


def test_the_page_says_what_great_expectations_found(hostile_result: Any) -> None:
    text = Page(data_docs_page(hostile_result, title="orders, 2026-03-01")).words
    assert "orders, 2026-03-01" in text
    assert "Evaluated Expectations 8" in text
    assert "values must match this regular expression" in text
    assert "raised an exception" in text
    assert "Traceback" not in text
    assert "site-packages" not in text


def test_the_page_stays_small(hostile_result: Any) -> None:
    assert len(data_docs_page(hostile_result, title="x" * 1_000_000)) < 150_000


def test_values_of_private_columns_are_left_out_and_their_counts_are_not(hostile_result: Any) -> None:
    assert "(private)" in Page(data_docs_page(hostile_result, title="orders")).words
    text = Page(data_docs_page(hostile_result, title="orders", private=["email"])).words
    assert "(private)" not in text
    assert "100% unexpected" in text
    assert "value_set" in text


def test_the_result_itself_is_left_as_it_was(hostile_result: Any) -> None:
    before = str(hostile_result.to_json_dict())
    data_docs_page(hostile_result, title="orders", private=["email"])
    assert str(hostile_result.to_json_dict()) == before
