"""pipelines/<name>/ → Pipeline. Every error says file:line, what is wrong, and the nearest valid word."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from weir.pipeline import (
    Column,
    Pattern,
    Pipeline,
    Schedule,
    ServedQuery,
    SourceLevels,
    Step,
    Stream,
    Table,
    View,
    ViewLevels,
    Watch,
    nearest,
)
from weir.refusal import Refusal

MAX_DECLARATION_BYTES = 1_000_000
"""A declaration is written by hand; what is larger is a mistake, and would keep the reader busy for minutes."""
MAX_DEPTH = 50

Where = dict[tuple[str | int, ...], int]


_Fastest: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The DAG processor reads all declarations every half a minute: libyaml does it ten times as fast."""


class _Reader(_Fastest):
    """Safe YAML in which only true and false are booleans and a date stays text, so that Norway is NO and not false."""


_Reader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Reader.add_implicit_resolver("tag:yaml.org,2002:bool", __import__("re").compile("^(true|false)$"), list("tf"))


def load_pipelines(folder: Path) -> dict[str, Pipeline]:
    """Every pipeline below the folder, by name."""
    return {found.name: load_pipeline(found) for found in declared_folders(folder)}


def declared_folders(folder: Path) -> list[Path]:
    """Where a pipeline is declared, well or badly."""
    if not folder.is_dir():
        raise Refusal(f"{folder}: no such folder; set WEIR_PIPELINES or run this where pipelines/ is")
    return sorted(file.parent for file in folder.glob("*/pipeline.yaml"))


def load_named(folder: Path, name: str) -> Pipeline:
    """One pipeline by its name. Others beside it are not read, so their errors do not matter here."""
    known = [found.name for found in declared_folders(folder)]
    if name not in known:
        hint = nearest(name, known) if known else ""
        raise Refusal(f"{folder}: there is no pipeline '{name}'{hint}")
    return load_pipeline(folder / name)


def load_pipeline(folder: Path) -> Pipeline:
    """Read one folder: pipeline.yaml, and <view>.sql beside it for each view."""
    file = folder / "pipeline.yaml"
    given, where = read_yaml(file)
    _read_sql(folder, file, given, where)
    try:
        pipeline = Pipeline.model_validate(given)
    except ValidationError as error:
        raise Refusal("\n".join(_say(file, given, where, e) for e in error.errors())) from None
    if pipeline.name != folder.name:
        raise Refusal(f"{file}:{where.get(('pipeline',), 1)}: the pipeline is called '{pipeline.name}', its folder '{folder.name}'")
    return pipeline


def read_yaml(file: Path) -> tuple[dict[str, Any], Where]:
    """The mapping in a YAML file and the line of each of its keys; no aliases, no tags, no key twice."""
    try:
        size = file.stat().st_size
        if size > MAX_DECLARATION_BYTES:
            raise Refusal(f"{file}: {size:,} bytes; a declaration has at most {MAX_DECLARATION_BYTES:,}")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise Refusal(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise Refusal(f"{file}: is not UTF-8 text") from None
    try:
        _refuse_aliases_and_depth(file, text)
        loader = _Reader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise Refusal(f"{file}:1: a mapping is expected, starting with `pipeline: <name>`")
        where: Where = dict(_lines(file, node, ()))
        return loader.construct_document(node), where
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Refusal(f"{file}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise Refusal(f"{file}: {str(error).splitlines()[0]}") from None


def _refuse_aliases_and_depth(file: Path, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Reader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise Refusal(f"{file}:{line}: aliases (*{event.anchor}) are not read: write the value out")
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise Refusal(f"{file}:{line}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1


def _lines(file: Path, node: yaml.Node, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise Refusal(f"{file}:{line}: '{key.value}' stands twice")
            seen.add(key.value)
            yield from _lines(file, value, (*path, key.value))
            yield (*path, key.value), line
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(file, value, (*path, index))


def _read_sql(folder: Path, file: Path, given: dict[str, Any], where: Where) -> None:
    """Put the text of <name>.sql into each view and served query that does not carry its SQL itself."""
    if isinstance(given.get("serve"), list):  # names alone
        for place, name in enumerate(given["serve"]):
            where["serve", str(name)] = where["serve", place]
        given["serve"] = {str(name): {} for name in given["serve"]}
    for word, what in (("views", "view"), ("serve", "served query")):
        declared = given.get(word)
        for name, own in declared.items() if isinstance(declared, dict) else ():
            if not isinstance(own, dict) or "sql" in own or "pattern" in own or not isinstance(name, str) or not name.isidentifier():
                continue
            path = folder / f"{name}.sql"
            if not path.is_file():
                raise Refusal(f"{file}:{where[(word, name)]}: {what} '{name}' needs its SQL in {path}")
            own["sql"] = path.read_text(encoding="utf-8").rstrip().rstrip(";")


def _say(file: Path, given: Any, where: Where, error: Any) -> str:
    """One line for one of pydantic's errors."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    known = path
    while known and known not in where:
        known = known[:-1]
    place = f"{file}:{where.get(known, 1)}"
    name = ".".join(str(part) for part in path)
    around = ".".join(str(part) for part in path[:-1]) or "the pipeline"
    match error["type"]:
        case "extra_forbidden":
            return f"{place}: unknown word '{path[-1]}' in {around}{nearest(str(path[-1]), _words_at(path[:-1]))}"
        case "missing":
            return f"{place}: {around} needs '{path[-1]}'"
        case "string_pattern_mismatch" if "[key]" in error["loc"] or path[-1] in ("pipeline", "identity", "occurred_at"):
            return f"{place}: '{error['input']}' is not a name: small letters, digits and _, starting with a letter, at most 63"
        case "string_pattern_mismatch" if path[-1] in ("type", "from"):
            types = "string, bigint, int, double, boolean, date, timestamp, decimal(p,s), array<…>, struct<…>"
            return f"{place}: {name}: '{error['input']}' is not a type ({types})"
        case "value_error":
            return f"{place}: {name + ': ' if name else ''}{error['ctx']['error']!s}"
        case _:
            return f"{place}: {name}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _words_at(path: tuple[str | int, ...]) -> list[str]:
    """The valid keys of the mapping at this path of a declaration."""
    model: type[BaseModel] = Pipeline
    match path:
        case ("streams", _):
            model = Stream
        case ("tables", _):
            model = Table
        case ("views", _):
            model = View
        case ("views", _, "pattern"):
            model = Pattern
        case ("views", _, "pattern", "steps", _):
            model = Step
        case ("serve", _):
            model = ServedQuery
        case ("watch", _):
            model = Watch
        case ("schedule",):
            model = Schedule
        case ("views", _, "levels"):
            model = ViewLevels
        case (_, _, "levels"):
            model = SourceLevels
        case (_, _, "columns", _):
            model = Column
    return [field.alias or name for name, field in model.model_fields.items()]
