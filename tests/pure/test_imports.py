"""Who may import whom: design rules that no reviewer has to remember."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [file for part in ("weir", "spark_jobs", "quality") for file in (ROOT / part).rglob("*.py")]


def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    env = os.environ | {"PYTHONPATH": str(ROOT / "plugins")}
    found = subprocess.run([lint, "--no-logo", "--no-cache"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def files_with(pattern: str) -> set[str]:
    return {file.relative_to(ROOT).as_posix() for file in SOURCES if re.search(pattern, file.read_text())}


def test_only_session_builds_a_session() -> None:
    assert files_with(r"SparkSession\.builder|getOrCreate\(") == {"spark_jobs/session.py"}


def test_only_tables_writes_delta() -> None:
    assert files_with(r'format\("delta"\)') == {"spark_jobs/tables.py"}


def test_the_cli_starts_without_the_heavy_packages() -> None:
    """`weir --help` must not wait for engines that it does not need."""
    heavy = "{m.split('.')[0] for m in sys.modules} & {'pyspark', 'airflow', 'great_expectations', 'pandas', 'delta'}"
    found = subprocess.run([sys.executable, "-c", f"import sys, weir.cli; print({heavy})"], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.strip() == "set()", found.stdout + found.stderr


def test_no_file_names_a_registry() -> None:
    files = ("requirements.lock", "ivy.xml", "pyproject.toml", "Makefile", "prepare.py")
    texts = {name: re.sub(r'xmlns:\w+="[^"]*"', "", (ROOT / name).read_text()) for name in files}  # the name of a namespace is no address
    assert not [name for name, text in texts.items() if re.search(r"https?://|index-url|find-links", text)]
