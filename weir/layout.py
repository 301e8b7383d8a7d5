"""The only file that spells a path, table, topic, checkpoint or app id."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weir.refusal import Refusal

PROJECT = Path(__file__).resolve().parent.parent
IVY_FILE = PROJECT / "ivy.xml"


@dataclass(frozen=True)
class Home:
    """Folders of this machine: the embedded stack's data, logs, and what was sent. Two checkouts have two homes."""

    root: Path

    @staticmethod
    def from_environment() -> "Home":
        return Home(Path(os.environ.get("WEIR_HOME") or ".weir").resolve())

    @property
    def lake(self) -> "Lake":
        return Lake.at(os.environ.get("WEIR_LAKE") or str(self.root / "lake"))

    @property
    def pipelines(self) -> Path:
        return Path(os.environ.get("WEIR_PIPELINES") or "pipelines")

    @property
    def stack_record(self) -> Path:
        return self.root / "stack.json"

    @property
    def kafka(self) -> Path:
        return self.root / "kafka"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def sent(self, pipeline: str, day: str, seed: int) -> Path:
        return self.root / "sent" / f"{pipeline}-{day}-{seed}.jsonl"


def jars_folder() -> Path:
    """Where the jars of this ivy.xml are kept; another ivy.xml has another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12]
    return Path(os.environ.get("WEIR_JARS") or cache / "weir" / "jars" / version)


@dataclass(frozen=True)
class Lake:
    """Names below the lake's root. The root is one spelling of one place: links, slashes and file:// are resolved."""

    root: str

    @staticmethod
    def at(root: str) -> "Lake":
        root = root.removeprefix("file://")
        if "://" in root:
            raise Refusal(f"WEIR_LAKE={root}: only a local folder can be the lake so far")
        return Lake(str(Path(root).resolve()))

    def raw(self, pipeline: str) -> str:
        """One table for all streams, partitioned by stream and day of arrival: one commit for all that came in ten seconds."""
        return f"{self.root}/{pipeline}/raw"

    def speed(self, pipeline: str, view: str, fingerprint: str) -> str:
        """Each fingerprint of a view has its own cells: a changed declaration never mixes with the old numbers."""
        return f"{self.root}/{pipeline}/views/{view}/{fingerprint}/speed"

    def batch(self, pipeline: str, view: str, fingerprint: str) -> str:
        return f"{self.root}/{pipeline}/views/{view}/{fingerprint}/batch"

    def accepted(self, pipeline: str, source: str) -> str:
        return f"{self.root}/{pipeline}/accepted/{source}"

    def quarantined(self, pipeline: str) -> str:
        """One table for all streams, partitioned by stream and day of arrival: what was set aside has one shape, its payload."""
        return f"{self.root}/{pipeline}/quarantined"

    def quarantine_acts(self, pipeline: str) -> str:
        """What people did about quarantined rows. Append only, like all the rest: nothing that was set aside is ever changed."""
        return f"{self.root}/{pipeline}/quarantine_acts"

    def stage(self, pipeline: str, source: str, batch: str) -> str:
        return f"{self.root}/_stage/{pipeline}/{source}/{batch}"

    def refine_control(self, pipeline: str) -> Path:
        """Cursors, plans and the lease of the micro-batches."""
        return Path(self.root) / "_control" / pipeline / "refine"

    def refine_record(self, pipeline: str, source: str, what: str) -> Path:
        """One source's cursor (`refine`, `replay`), `plan`, or the report of its `blocked` gate."""
        return self.refine_control(pipeline) / f"{source}.{what}.json"

    def dirty_days(self, pipeline: str) -> Path:
        """A folder with one record per day that the nightly has to recompute."""
        return Path(self.root) / "_control" / pipeline / "dirty"

    def quality_site(self, pipeline: str) -> Path:
        return Path(self.root) / pipeline / "reports" / "quality"

    def progress(self, pipeline: str) -> str:
        return f"{self.root}/{pipeline}/progress"

    def checkpoint(self, pipeline: str, query: str, fingerprint: str) -> str:
        return f"{self.root}/_checkpoints/{pipeline}/{query}/{fingerprint}"

    def nightly_report(self, pipeline: str, day: str) -> Path:
        return Path(self.root) / pipeline / "reports" / f"nightly-{day}.json"

    def control(self, pipeline: str) -> Path:
        return Path(self.root) / "_control" / pipeline


ARCHIVE_QUERY = "archive"


def archive_fingerprint(topics: Iterable[str]) -> str:
    """Stands where a view's checkpoint has its fingerprint: Spark's Kafka source cannot forget a topic, so another set has another."""
    return hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:12]


REFINE, REPLAY = "refine", "replay"
"""The two ways by which rows come into accepted tables; each numbers its own batches."""


def view_query(view: str) -> str:
    return f"view_{view}"


def app_id(pipeline: str, query: str, generation: str) -> str:
    """Delta's txnAppId of one query. `generation` is the checkpoint's own id: a reset checkpoint must not look like the old."""
    return f"weir/{pipeline}/{query}/{generation}"
