"""The only file that spells a path, table, topic, checkpoint or app id."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weir.lake_files import OBJECT_STORE, is_remote, lake_path
from weir.refusal import Refusal

PROJECT = Path(__file__).resolve().parent.parent
IVY_FILE = PROJECT / "ivy.xml"
LOG_STORE_SOURCE = PROJECT / "weir" / "java" / "ConditionalLogStore.java"


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

    @property
    def airflow(self) -> Path:
        return self.root / "airflow"

    @property
    def airflow_record(self) -> Path:
        return self.root / "airflow.json"

    @property
    def airflow_parts(self) -> Path:
        return self.airflow / "parts.json"

    @property
    def spark(self) -> Path:
        return self.root / "spark"

    @property
    def spark_record(self) -> Path:
        return self.root / "spark.json"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def sent(self, pipeline: str, day: str, seed: int) -> Path:
        return self.root / "sent" / f"{pipeline}-{day}-{seed}.jsonl"


def jars_folder() -> Path:
    """Where the jars of this ivy.xml, and what is compiled beside them, are kept; another one has another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = hashlib.sha256(IVY_FILE.read_bytes() + LOG_STORE_SOURCE.read_bytes()).hexdigest()[:12]
    return Path(os.environ.get("WEIR_JARS") or cache / "weir" / "jars" / version)


@dataclass(frozen=True)
class Lake:
    """Names below the lake's root: of tables as Spark spells them, of records as paths. The root is one spelling of one place."""

    root: str

    @staticmethod
    def at(root: str) -> "Lake":
        scheme, _, path = root.rpartition("://")
        if scheme in ("s3", "s3a") and path.strip("/"):
            return Lake(OBJECT_STORE + path.strip("/"))
        if scheme not in ("", "file"):
            raise Refusal(f"WEIR_LAKE={root}: the lake is a folder, or s3://bucket/folder")
        return Lake(str(Path(path).resolve()))

    @property
    def is_remote(self) -> bool:
        return is_remote(self.root)

    def _path(self, *parts: str) -> Path:
        return lake_path("/".join((self.root, *parts)))

    def raw(self, pipeline: str) -> str:
        """One table for all streams, partitioned by stream and day of arrival: one commit for all that came in ten seconds."""
        return f"{self.root}/{pipeline}/raw"

    def journal(self, pipeline: str) -> str:
        """One row per message with its fate, in one table for all streams."""
        return f"{self.root}/{pipeline}/journal"

    def speed(self, pipeline: str, view: str, fingerprint: str) -> str:
        """Each fingerprint of a view has its own cells: a changed declaration never mixes with the old numbers."""
        return f"{self.root}/{pipeline}/views/{view}/{fingerprint}/speed"

    def batch(self, pipeline: str, view: str, fingerprint: str) -> str:
        return f"{self.root}/{pipeline}/views/{view}/{fingerprint}/batch"

    def view_versions(self, pipeline: str, view: str) -> list[str]:
        """The fingerprints of which there are cells."""
        folder = self._path(pipeline, "views", view)
        return sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []

    def view_version(self, pipeline: str, view: str, fingerprint: str) -> Path:
        """How the stream computes the view in this form."""
        return self._path("_control", pipeline, "views", f"{view}-{fingerprint}.json")

    def history(self, pipeline: str, table: str, fingerprint: str) -> str:
        """All versions of a table's rows, as the intake accepted them."""
        return f"{self.root}/{pipeline}/histories/{table}/{fingerprint}"

    def accepted(self, pipeline: str, source: str) -> str:
        return f"{self.root}/{pipeline}/accepted/{source}"

    def quarantined(self, pipeline: str) -> str:
        """One table for all streams, partitioned by stream and day of arrival: what was set aside has one shape, its payload."""
        return f"{self.root}/{pipeline}/quarantined"

    def quarantine_acts(self, pipeline: str) -> str:
        """What people did about quarantined rows. Append only, like all the rest: nothing that was set aside is ever changed."""
        return f"{self.root}/{pipeline}/quarantine_acts"

    def stages(self, pipeline: str) -> Path:
        return self._path("_stage", pipeline)

    def stage(self, pipeline: str, source: str, batch: str) -> str:
        return f"{self.root}/_stage/{pipeline}/{source}/{batch}"

    def refine_control(self, pipeline: str) -> Path:
        """Cursors, plans and the lease of the micro-batches."""
        return self._path("_control", pipeline, "refine")

    def refine_record(self, pipeline: str, source: str, what: str) -> Path:
        """One source's cursor (`refine`, `replay`), `plan`, or the report of its `blocked` gate."""
        return self.refine_control(pipeline) / f"{source}.{what}.json"

    def housekeeping_control(self, pipeline: str) -> Path:
        """The lease of the housekeeping."""
        return self._path("_control", pipeline, "housekeeping")

    def raw_kept(self, pipeline: str) -> Path:
        """Says since which day raw is whole, once days of it have been dropped."""
        return self._path("_control", pipeline, "raw_kept.json")

    def dirty_days(self, pipeline: str) -> Path:
        """A folder with one record per day that the nightly has to recompute."""
        return self._path("_control", pipeline, "dirty")

    def arrivals(self, pipeline: str) -> Path:
        """A folder with one record per day of arrival: which days its events belong to."""
        return self._path("_control", pipeline, "arrivals")

    def settlement(self, pipeline: str, view: str, fingerprint: str) -> Path:
        """How far the view in this form is settled."""
        return self._path("_control", pipeline, "settled", f"{view}-{fingerprint}.json")

    def losses(self, pipeline: str) -> Path:
        """What the driver could not read because the log had dropped it."""
        return self._path("_control", pipeline, "losses.json")

    def searches(self, pipeline: str) -> Path:
        """The conditions that people have saved, to be told of."""
        return self._path("_control", pipeline, "searches.json")

    def night_control(self, pipeline: str) -> Path:
        """The lease of the nights."""
        return self._path("_control", pipeline, "nightly")

    def ledger(self, pipeline: str) -> str:
        return f"{self.root}/{pipeline}/ledger"

    def differences(self, pipeline: str) -> str:
        return f"{self.root}/{pipeline}/differences"

    def readings(self, pipeline: str) -> Path:
        """What the driver has measured of itself in the last hours."""
        return self._path("_control", pipeline, "readings.json")

    def breaches(self, pipeline: str) -> Path:
        """Which service levels are not met, and since when."""
        return self._path("_control", pipeline, "breaches.json")

    def quality_summary(self, pipeline: str) -> Path:
        return self._path(pipeline, "reports", "quality.json")

    def quarantine_summary(self, pipeline: str) -> Path:
        return self._path(pipeline, "reports", "quarantine.json")

    def nights_summary(self, pipeline: str) -> Path:
        return self._path(pipeline, "reports", "nights.json")

    def quality_site(self, pipeline: str) -> Path:
        return self._path(pipeline, "reports", "quality")

    def nights_site(self, pipeline: str) -> Path:
        return self._path(pipeline, "reports", "nights")

    def view_checkpoint(self, pipeline: str, view: str, fingerprint: str) -> str:
        """Of a view's query over the journal."""
        return f"{self.root}/_checkpoints/{pipeline}/views/{view}/{fingerprint}"

    def checkpoint(self, pipeline: str, query: str, fingerprint: str) -> str:
        return f"{self.root}/_checkpoints/{pipeline}/{query}/{fingerprint}"

    def nightly_report(self, pipeline: str, day: str) -> Path:
        return self._path(pipeline, "reports", f"nightly-{day}.json")

    def outcome(self, pipeline: str, name: str) -> Path:
        """How a job that was started by Airflow ended. In the lake, because the job may run on another machine than its starter."""
        return self._path("_control", pipeline, "outcomes", f"{name}.json")

    def control(self, pipeline: str) -> Path:
        return self._path("_control", pipeline)


STREAM, MICROBATCH, NIGHTLY = "stream", "microbatch", "nightly"
QUARANTINE = "quarantine"
HOUSEKEEPING_DAG = "weir__housekeeping"
SPARK_CONNECTION = "spark_default"
SHIFT_TASK, RELIEF_TASK = "shift", "relief"
QUARANTINE_TASK = "act"


def dag_id(pipeline: str, part: str) -> str:
    return f"{pipeline}__{part}"


def accepted_asset(pipeline: str, source: str) -> str:
    """What other people's DAGs follow to run after a micro-batch has published."""
    return f"weir://{pipeline}/accepted/{source}"


def view_asset(pipeline: str, view: str) -> str:
    """What other people's DAGs follow to run after a night has recomputed a view."""
    return f"weir://{pipeline}/views/{view}"


def job_script(module: str) -> Path:
    """What spark-submit is given to run."""
    return PROJECT / "spark_jobs" / f"{module}.py"


def corrections_topic(pipeline: str, view: str) -> str:
    """Where the night tells which served numbers it has changed."""
    return f"{pipeline}.{view}.corrections"


def alerts_topic(pipeline: str) -> str:
    """Where the rows go that meet a condition."""
    return f"{pipeline}.alerts"


def rejected_topic(topic: str) -> str:
    """Where what a watched topic brings goes when it is rejected, with its reasons."""
    return f"{topic}.rejected"


ARCHIVE_QUERY, INTAKE_QUERY = "archive", "intake"


def archive_fingerprint(topics: Iterable[str]) -> str:
    """Stands where a view's checkpoint has its fingerprint: Spark's Kafka source cannot forget a topic, so another set has another."""
    return hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:12]


REFINE, REPLAY = "refine", "replay"
"""The two ways by which rows come into accepted tables; each numbers its own batches."""


def view_query(view: str) -> str:
    return f"view_{view}"


def watch_query(stream: str) -> str:
    return f"watch_{stream}"


def journal_writer(pipeline: str) -> str:
    """Delta's txnAppId of the intake. Its batches are numbered by the journal itself, so no checkpoint is in it."""
    return app_id(pipeline, INTAKE_QUERY, "journal")


def app_id(pipeline: str, query: str, generation: str) -> str:
    """Delta's txnAppId of one query. `generation` is the checkpoint's own id: a reset checkpoint must not look like the old."""
    return f"weir/{pipeline}/{query}/{generation}"
