"""From topics over streams and tables to views and served queries: where each stands in the picture, and what leads where."""

from dataclasses import dataclass, field

from weir.pipeline import Pipeline, history_of
from weir.sql_text import relations_in

COLUMNS = ("Topics", "Streams and tables", "Views", "Served queries")
BOX_WIDTH, BOX_HEIGHT = 196, 34
COLUMN_GAP, ROW_GAP = 96, 14
TOP, SIDE = 34, 8
LABEL_CHARACTERS = 26
SWEEPS = 4
"""Times the columns are put into order by their neighbours: more do not make fewer crossings in such small pictures."""


@dataclass(frozen=True)
class Node:
    """One thing: its kind and name, and where its box stands."""

    kind: str
    """topic, stream, table, view or query."""
    name: str
    x: float = 0.0
    y: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def label(self) -> str:
        return self.name if len(self.name) <= LABEL_CHARACTERS else f"{self.name[: LABEL_CHARACTERS - 1]}…"


@dataclass(frozen=True)
class Edge:
    """What leads from one to another; looked up at the time of each event where it is a table of a view."""

    start: str
    end: str
    path: str = ""
    is_lookup: bool = False


@dataclass(frozen=True)
class Lineage:
    width: float
    height: float
    columns: list[tuple[float, str]]
    nodes: list[Node]
    edges: list[Edge]
    box_width: int = field(default=BOX_WIDTH)
    box_height: int = field(default=BOX_HEIGHT)


def lineage_of(pipeline: Pipeline) -> Lineage:
    """Straight rows of boxes in columns, each box as near as can be to what it is made of, with smooth lines between them.

    A served query that reads another one stands in a column behind it, so that every line goes to the right.
    """
    layers, edges = _layers(pipeline)
    layers = _ordered(layers, edges)
    tallest = max(len(layer) for layer in layers)
    height = TOP + tallest * (BOX_HEIGHT + ROW_GAP) + SIDE
    places: dict[str, Node] = {}
    for column, layer in enumerate(layers):
        x = SIDE + column * (BOX_WIDTH + COLUMN_GAP)
        free = (height - TOP - SIDE) / max(1, len(layer))
        for row, node in enumerate(layer):
            places[node.key] = Node(node.kind, node.name, x, round(TOP + row * free + (free - BOX_HEIGHT) / 2, 1))
    titles = [*COLUMNS[: len(layers)], *[""] * (len(layers) - len(COLUMNS))]
    return Lineage(
        width=2 * SIDE + len(layers) * BOX_WIDTH + (len(layers) - 1) * COLUMN_GAP,
        height=height,
        columns=[(SIDE + column * (BOX_WIDTH + COLUMN_GAP), title) for column, title in enumerate(titles)],
        nodes=list(places.values()),
        edges=[Edge(own.start, own.end, _path(places[own.start], places[own.end]), own.is_lookup) for own in edges],
    )


def _layers(pipeline: Pipeline) -> tuple[list[list[Node]], list[Edge]]:
    kinds = {name: "table" if name in pipeline.tables else "stream" for name in pipeline.sources}
    edges = [Edge(f"topic {topic}", f"{kinds[name]} {name}") for topic, name in pipeline.topics.items()]
    for view, declared in pipeline.views.items():
        edges += [Edge(f"stream {stream}", f"view {view}") for stream in pipeline.streams_of(view)]
        edges += [Edge(f"table {table}", f"view {view}", is_lookup=True) for table in declared.as_of]
    depth: dict[str, int] = {}
    read: dict[str, list[str]] = {}
    for query, served in pipeline.serve.items():
        names = relations_in(served.sql)
        read[query] = [name for name in names if name in pipeline.serve and name != query]
        edges += [Edge(f"view {name}", f"query {query}") for name in pipeline.views if name in names]
        edges += [Edge(f"table {name}", f"query {query}") for name in pipeline.tables if name in names or history_of(name) in names]
        edges += [Edge(f"query {name}", f"query {query}") for name in read[query]]

    for query in pipeline.serve:
        _note_depth(query, read, depth)
    levels = range(max(depth.values(), default=-1) + 1)
    layers = [
        [Node("topic", topic) for topic in pipeline.topics],
        [Node(kinds[name], name) for name in pipeline.sources],
        [Node("view", view) for view in pipeline.views],
        *[[Node("query", query) for query in pipeline.serve if depth[query] == level] for level in levels],
    ]
    while len(layers) > 1 and not layers[-1]:
        layers.pop()
    return layers, edges


def _note_depth(query: str, read: dict[str, list[str]], depth: dict[str, int]) -> int:
    """How many served queries stand between this one and the views."""
    if query not in depth:
        depth[query] = max((_note_depth(name, read, depth) + 1 for name in read[query]), default=0)
    return depth[query]


def _ordered(layers: list[list[Node]], edges: list[Edge]) -> list[list[Node]]:
    """Each by the middle of its neighbours' places, forwards and back: few lines cross."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for edge in edges:
        before.setdefault(edge.end, []).append(edge.start)
        after.setdefault(edge.start, []).append(edge.end)
    layers = [list(layer) for layer in layers]
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        for column in range(1, len(layers)) if forwards else range(len(layers) - 2, -1, -1):
            places = {node.key: row / max(1, len(layer)) for layer in layers for row, node in enumerate(layer)}
            near = before if forwards else after
            middles = {node.key: _middle([places[key] for key in near.get(node.key, [])], places[node.key]) for node in layers[column]}
            layers[column].sort(key=lambda node: middles[node.key])
    return layers


def _middle(found: list[float], otherwise: float) -> float:
    return sum(found) / len(found) if found else otherwise


def _path(start: Node, end: Node) -> str:
    """A smooth line from the right side of a box to the left side of another."""
    x, y, to_x, to_y = start.x + BOX_WIDTH, start.y + BOX_HEIGHT / 2, end.x, end.y + BOX_HEIGHT / 2
    bend = min(COLUMN_GAP, to_x - x) / 2
    if to_x - x <= COLUMN_GAP:
        return f"M{x:g} {y:g}C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
    # Past a column: straight until the last gap, so that it crosses boxes as little as can be.
    return f"M{x:g} {y:g}C{x + bend:g} {y:g} {x + bend:g} {to_y:g} {x + 2 * bend:g} {to_y:g}L{to_x:g} {to_y:g}"
