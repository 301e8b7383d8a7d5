"""The lineage as a picture: everything has its place, every line leads to the right, and nothing lies on anything else."""

from itertools import combinations
from pathlib import Path

from weir.layout import PROJECT
from weir.loader import load_pipeline
from weir.look.lineage import BOX_HEIGHT, BOX_WIDTH, LABEL_CHARACTERS, lineage_of

SHOP = load_pipeline(PROJECT / "pipelines" / "shop")


def test_everything_of_the_shop_stands_somewhere_and_nothing_upon_another() -> None:
    picture = lineage_of(SHOP)
    names = {(node.kind, node.name) for node in picture.nodes}
    assert {name for kind, name in names if kind == "view"} == set(SHOP.views)
    assert {name for kind, name in names if kind == "topic"} == set(SHOP.topics)
    assert ("table", "customers") in names and ("stream", "orders") in names and ("query", "best_countries") in names
    for one, other in combinations(picture.nodes, 2):
        assert abs(one.x - other.x) >= BOX_WIDTH or abs(one.y - other.y) >= BOX_HEIGHT, (one, other)
    for node in picture.nodes:
        assert 0 <= node.x <= picture.width - BOX_WIDTH and 0 <= node.y <= picture.height - BOX_HEIGHT


def test_lines_say_what_is_made_of_what_and_lead_to_the_right() -> None:
    picture = lineage_of(SHOP)
    edges = {(edge.start, edge.end): edge for edge in picture.edges}
    places = {node.key: node for node in picture.nodes}
    assert ("topic shop.orders", "stream orders") in edges
    assert ("stream orders", "view paid_orders") in edges and ("stream payments", "view paid_orders") in edges
    assert (
        edges["table customers", "view revenue_per_segment"].is_lookup and not edges["stream orders", "view revenue_per_segment"].is_lookup
    )
    assert ("view revenue_per_minute", "query best_countries") in edges
    assert all(places[start].x < places[end].x for start, end in edges) and all(edge.path.startswith("M") for edge in picture.edges)


def test_a_query_over_another_stands_behind_it_and_long_names_are_cut(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    long = "v" * 60
    (folder / "pipeline.yaml").write_text(
        "pipeline: tiny\n"
        "streams: {s: {topic: [a, b], identity: id, occurred_at: at, columns: {id: string, at: timestamp}}}\n"
        "tables: {t: {topic: c, key: k, changed_at: at, columns: {k: string, at: timestamp}}}\n"
        f"views: {{{long}: {{grain: [minute]}}}}\n"
        f"serve: {{last: {{sql: FROM middle}}, middle: {{sql: FROM {long}}}, rows: {{sql: FROM t__history}}}}\n"
    )
    (folder / f"{long}.sql").write_text(
        "SELECT window(at, '1 minute').start AS minute, count(*) AS n FROM s GROUP BY window(at, '1 minute')"
    )
    picture = lineage_of(load_pipeline(folder))
    places = {node.key: node for node in picture.nodes}
    assert places["query last"].x > places["query middle"].x > places[f"view {long}"].x
    assert len(places[f"view {long}"].label) == LABEL_CHARACTERS
    assert {(edge.start, edge.end) for edge in picture.edges} >= {
        ("topic a", "stream s"),
        ("topic b", "stream s"),
        ("table t", "query rows"),
    }


def test_a_pipeline_with_nothing_but_a_stream_has_a_picture(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(
        "pipeline: bare\nstreams: {s: {topic: a, identity: id, occurred_at: at, columns: {id: string, at: timestamp}}}\n"
    )
    picture = lineage_of(load_pipeline(folder))
    assert len(picture.nodes) == 2 and len(picture.columns) == 2
