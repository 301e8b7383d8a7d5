"""The embedded stack: the jars of ivy.xml, fetched once, and one real Kafka broker that they run, per home and on this machine only."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

import psutil
from kafka import KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from weir.event_time import utc_now
from weir.layout import IVY_FILE, Home, jars_folder
from weir.processes import HOST, Say, choose_port, find_java, lock_stack, open_log, pyspark_folder, say_nothing
from weir.records import Identity, Record
from weir.refusal import Refusal

FREE_BYTES_NEEDED = 1_000_000_000
"""Kafka dies in the middle of a write when its disk is full: better not to start."""

START_SECONDS = 60
"""A start takes 3 s on an idle machine; after a crash 9 s more, which Kafka waits for its dead self; on a crowded machine far longer."""

STOP_SECONDS = 30
"""A stop takes 1 s; SIGKILL after this long loses nothing, but the next start has to recover."""

STALL_SECONDS = 120
"""Ivy itself waits for ever on a network that swallows its packets."""

SETTINGS = """\
# Written by Weir at every start.
node.id=1
process.roles=broker,controller
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller_port}

# Two folders: Kafka then locks the first before it writes. With one, a second broker damages it before it notices the lock.
# Both are relative to the broker's working folder, so that a home may have any name and may be moved.
metadata.log.dir=metadata
log.dirs=topics

# Simulated days lie in the past: by their age these messages would expire at once.
log.retention.ms=-1
auto.create.topics.enable=false
num.partitions=2

# One broker, small and quick to start.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=4194304
"""


class KafkaRecord(Record):
    """Which process is the broker of a home, and where it listens. It outlives the broker: the next start takes the same ports."""

    identity: Identity
    port: int
    controller_port: int
    started_at: datetime

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def is_alive(self) -> bool:
        return self.identity.is_alive()


class KafkaCluster(Record):
    """The id that all of a home's Kafka folders bear. Kept before they are formatted, so that a formatting cut short can be finished."""

    cluster_id: str


class KafkaState(Record):
    """How the broker of a home is now. Healthy means that it answered a request just now."""

    running: bool
    healthy: bool
    port: int | None
    pid: int | None
    uptime_seconds: float
    data_bytes: int


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""For a Java that lives for minutes: without its dear second compiler a short Spark job takes two thirds of the time. With it goes
most of the room for compiled code, which several queries of Spark need: they would die for want of it."""

JARS_LIST = "jars.txt"
"""Stands beside the jars and names them: a jar that was lost is told from one that nobody asked for."""


# --- Java and jars


def fetch_jars(say: Say = say_nothing) -> Path:
    """The folder with all jars of ivy.xml, fetched where they are missing.

    They become visible by one rename, whole. Of two processes that fetch at once, the second to finish throws its own away.
    """
    folder = jars_folder()
    if _missing_jar(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        workplace = tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-")
    except OSError as error:
        raise Refusal(f"{folder.parent} cannot be written ({error.strerror}): choose another folder with WEIR_JARS") from None
    with workplace as name:
        say("fetching the jars of Spark's connectors and of Kafka: 63 MB, about a minute")
        log = Path(name, "log")
        if not _run_ivy(Path(name), log, say):
            log = log.replace(folder.with_name(f"{folder.name}.log"))
            raise Refusal(f"{_name_unresolved(log)}: check the network and Maven's settings, then run `weir jars`; log: {log}")
        fetched = Path(name, "jars")
        (fetched / JARS_LIST).write_text("\n".join(sorted(str(jar.relative_to(fetched)) for jar in fetched.rglob("*.jar"))))
        try:
            if folder.exists() and _missing_jar(folder) is not None:
                folder.rename(Path(name, "broken"))
            fetched.rename(folder)
        except OSError as error:
            if _missing_jar(folder) is not None:
                raise Refusal(f"{folder} cannot become the folder of the jars ({error.strerror}): empty it or set WEIR_JARS") from None
    return folder


def spark_jars() -> list[Path]:
    """What a Spark session needs besides PySpark's own jars."""
    return _list_jars("spark")


def kafka_jars() -> list[Path]:
    """The class path of the broker."""
    return _list_jars("kafka")


def _list_jars(part: str) -> list[Path]:
    folder = jars_folder()
    if (missing := _missing_jar(folder)) is not None:
        raise Refusal(f"{missing} is not in {folder}: run `weir jars`")
    return sorted((folder / part).resolve().glob("*.jar"))


def _missing_jar(folder: Path) -> str | None:
    """A jar that was fetched and is gone; None when all are there."""
    try:
        names = (folder / JARS_LIST).read_text().split()
    except OSError:
        return "the list of jars"
    return next((name for name in names if not (folder / name).is_file()), None)


def _pyspark_jars(*names: str) -> list[Path]:
    """Those jars that PySpark ships, in this order."""
    return [jar for name in names for jar in pyspark_folder().glob(f"jars/{name}-[0-9]*.jar")]


def _run_ivy(workplace: Path, log: Path, say: Say) -> bool:
    """Whether Ivy could fetch everything. It is ended when it has said nothing for too long."""
    command = [find_java(), "-cp", str(_pyspark_jars("ivy")[0]), "org.apache.ivy.Main", "-ivy", str(IVY_FILE)]
    command += ["-cache", "cache", "-retrieve", "jars/[conf]/[artifact]-[revision].[ext]"]
    with log.open("wb") as output, subprocess.Popen(command, cwd=workplace, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as ivy:
        said, said_at, told = b"", time.monotonic(), 0
        try:
            while ivy.poll() is None and time.monotonic() - said_at < STALL_SECONDS:
                time.sleep(0.5)
                if log.stat().st_size > len(said):
                    said, said_at = log.read_bytes(), time.monotonic()
                if (fetched := said.count(b"[SUCCESSFUL ]")) >= told + 10:
                    say(f"{fetched} jars fetched")
                    told = fetched
        finally:
            ivy.kill()
    return ivy.returncode == 0


def _name_unresolved(log: Path) -> str:
    """One phrase with the modules that Ivy's closing summary names."""
    unresolved = list(dict.fromkeys(re.findall(r"^\s*:: (\S+#[^\s:]+)", log.read_text(errors="replace"), re.MULTILINE)))
    if not unresolved:
        return "the jars could not be fetched"
    more = f" and {len(unresolved) - 3} more" if len(unresolved) > 3 else ""
    return f"{', '.join(unresolved[:3])}{more} could not be fetched"


# --- The broker


def start_kafka(home: Home, port: int | None = None, say: Say = say_nothing) -> KafkaRecord:
    """One broker that answers: the one that already runs, or a new one on what the last has kept.

    A start that was interrupted is taken up again: the broker is recorded before it is waited for.
    """
    with lock_stack(home, say):
        record = _read_record(home)
        if record is None or not record.is_alive():
            record = _launch_broker(home, record, port, say)
        elif port not in (None, record.port):
            raise Refusal(f"Kafka already runs on port {record.port}: stop it with `weir down`, or leave out --kafka-port")
        _await_answer(home, record)
        return record


def stop_kafka(home: Home, say: Say = say_nothing) -> bool:
    """Stop the broker of this home and nothing else; whether there was one. What it has kept stays."""
    if _read_record(home) is None:
        return False
    with lock_stack(home, say):
        record = _read_record(home)
        if record is None or not record.is_alive():
            return False
        say("stopping Kafka")
        with suppress(psutil.NoSuchProcess):
            broker = psutil.Process(record.identity.pid)
            broker.terminate()
            try:
                broker.wait(STOP_SECONDS)
            except psutil.TimeoutExpired:
                say(f"Kafka has not stopped within {STOP_SECONDS} s: killing it")
                broker.kill()
                broker.wait(STOP_SECONDS)
        return True


def kafka_state(home: Home) -> KafkaState:
    """How the broker of this home is, asked anew. Changes nothing and waits a few seconds at most."""
    record = _read_record(home)
    kept = _count_bytes(home.kafka)
    if record is None or not record.is_alive():
        return KafkaState(running=False, healthy=False, port=record.port if record else None, pid=None, uptime_seconds=0, data_bytes=kept)
    return KafkaState(
        running=True,
        healthy=_answers(home, record),
        port=record.port,
        pid=record.identity.pid,
        uptime_seconds=(utc_now() - record.started_at).total_seconds(),
        data_bytes=kept,
    )


def bootstrap(home: Home) -> str:
    """The brokers to talk to: those of WEIR_KAFKA, else the one of this home."""
    if brokers := os.environ.get("WEIR_KAFKA"):
        return brokers
    record = _read_record(home)
    if record is None or not record.is_alive():
        raise Refusal("Kafka is not running: run `weir up`, or set WEIR_KAFKA to your brokers")
    return record.address


def running_bootstrap(home: Home) -> str:
    """The same, or nothing where no broker is known: for those who can do without."""
    try:
        return bootstrap(home)
    except Refusal:
        return ""


def _read_record(home: Home) -> KafkaRecord | None:
    try:
        return KafkaRecord.read(home.stack_record)
    except ValueError as error:
        raise Refusal(f"{error}: end the broker of this home by hand, then delete that file") from None


def _launch_broker(home: Home, last: KafkaRecord | None, wanted_port: int | None, say: Say) -> KafkaRecord:
    """A new broker process, recorded but not yet ready."""
    java = [find_java(), "-Xmx512m", "-cp", _build_class_path(), "-Dlog4j2.level=WARN"]
    if shutil.disk_usage(home.root).free < FREE_BYTES_NEEDED:
        raise Refusal(f"less than 1 GB is free on the disk of {home.root}: free some, or choose another folder with WEIR_HOME")
    port, controller_port = _choose_ports(last, wanted_port)
    home.kafka.mkdir(exist_ok=True, mode=0o700)
    settings = home.kafka / "server.properties"
    settings.write_text(SETTINGS.format(host=HOST, port=port, controller_port=controller_port))
    with open_log(home.log("kafka")) as log:
        _format_storage(home, java, log)
        say(f"starting Kafka on {HOST}:{port}")
        broker = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings.resolve())],
            cwd=home.kafka,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = KafkaRecord(identity=Identity.of(broker.pid), port=port, controller_port=controller_port, started_at=utc_now())
    record.write(home.stack_record)
    return record


def _build_class_path() -> str:
    """The broker's jars, behind PySpark's slf4j and log4j: Kafka's own lack the piece that joins the two, and would log nothing."""
    logging = _pyspark_jars("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
    return os.pathsep.join(map(str, [*logging, kafka_jars()[0].parent / "*"]))


def _choose_ports(last: KafkaRecord | None, wanted: int | None) -> tuple[int, int]:
    """The broker's own port and its controller's, which must differ."""
    port = choose_port(last.port if last else None, wanted, "--kafka-port")
    while (controller := choose_port(last.controller_port if last and last.controller_port != port else None, None, "")) == port:
        pass
    return port, controller


def _format_storage(home: Home, java: list[str], log: IO[bytes]) -> None:
    """Make the broker's folders ready for their first use. Each gets its meta.properties last: where one lacks it, this is done again."""
    if all((home.kafka / folder / "meta.properties").is_file() for folder in ("metadata", "topics")):
        return
    kept = home.kafka / "cluster.json"
    cluster = KafkaCluster.read(kept) or KafkaCluster(cluster_id=f"weir{secrets.token_urlsafe(16)[4:]}")
    cluster.write(kept)
    command = [*java, "kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted"]
    command += ["-t", cluster.cluster_id, "-c", "server.properties"]
    if subprocess.run(command, cwd=home.kafka, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode:
        raise Refusal(f"Kafka's folders could not be formatted: {_find_complaint(home.log('kafka'))}; log: {home.log('kafka')}")


def _await_answer(home: Home, record: KafkaRecord) -> None:
    """Wait until the broker answers; refuse when it dies before, or takes too long."""
    log = home.log("kafka")

    def check() -> bool:
        if not record.is_alive():
            raise Refusal(f"Kafka ended while starting: {_find_complaint(log)}; log: {log}")
        return _answers(home, record)

    try:
        Retrying(stop=stop_after_delay(START_SECONDS), wait=wait_fixed(0.2), retry=retry_if_result(lambda ready: not ready))(check)
    except RetryError:
        advice = "wait on with `weir up`, or end it with `weir down`"
        raise Refusal(f"Kafka does not answer on {record.address} after {START_SECONDS} s: {advice}; log: {log}") from None


def _answers(home: Home, record: KafkaRecord) -> bool:
    """Whether the broker that listens there is this home's, takes requests and is admitted to its cluster."""
    try:
        socket.create_connection((HOST, record.port), timeout=1).close()
        with KafkaAdminClient(bootstrap_servers=record.address, bootstrap_timeout_ms=5_000, request_timeout_ms=5_000) as admin:
            answer = admin.describe_cluster()
    except (OSError, KafkaError):
        return False
    own = KafkaCluster.read(home.kafka / "cluster.json")
    return own is not None and answer["cluster_id"] == own.cluster_id and not all(broker["is_fenced"] for broker in answer["brokers"])


def _find_complaint(log: Path) -> str:
    """The line of a Java program's log that says best why it ended: the innermost cause of its last exception."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip() and not line[0].isspace()]
    complaints = [line for line in lines if re.search("Exception|Error|ERROR|insufficient", line)]
    return (complaints or lines or ["it said nothing"])[-1].removeprefix("Caused by: ")


def _count_bytes(folder: Path) -> int:
    """What the folder takes on the disk. Kafka's index files are mostly holes, and files may vanish meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += file.lstat().st_blocks * 512
    return total


# --- Topics


def missing_topics(bootstrap: str, topics: Iterable[str]) -> list[str]:
    """Which of these topics are not there."""
    with _connect(bootstrap) as admin:
        existing = set(admin.list_topics())
    return [topic for topic in topics if topic not in existing]


def create_topics(bootstrap: str, topics: dict[str, int]) -> list[str]:
    """Create those topics, given with their numbers of partitions, that are missing; which these were.

    Replicas are as many as the brokers' own default. A topic that is there stays as it is, whatever its partitions.
    """
    created = []
    missing = missing_topics(bootstrap, topics)
    with _connect(bootstrap) as admin:
        for topic in missing:
            with suppress(TopicAlreadyExistsError):
                admin.create_topics({topic: {"num_partitions": topics[topic], "replication_factor": -1}}, wait_for_metadata=True)
                created.append(topic)
    return created


def end_offsets(bootstrap: str, topics: Iterable[str]) -> dict[str, int]:
    """The offset after the last message of each partition, by topic/partition."""
    return _offsets(bootstrap, topics, OffsetSpec.LATEST)


def first_offsets(bootstrap: str, topics: Iterable[str]) -> dict[str, int]:
    """The first offset that each partition still has, by topic/partition."""
    return _offsets(bootstrap, topics, OffsetSpec.EARLIEST)


def _offsets(bootstrap: str, topics: Iterable[str], which: OffsetSpec) -> dict[str, int]:
    with _connect(bootstrap) as admin:
        described = admin.describe_topics(list(topics))
        if missing := [topic["name"] for topic in described if topic["error_code"]]:
            raise Refusal(f"topic {', '.join(missing)} is not on {bootstrap}: run `weir up`, or create it there")
        partitions = [TopicPartition(topic["name"], part["partition_index"]) for topic in described for part in topic["partitions"]]
        found = admin.list_partition_offsets(dict.fromkeys(partitions, which))
    return {f"{partition.topic}/{partition.partition}": own.offset for partition, own in sorted(found.items())}


def shortest_retention_seconds(bootstrap: str, topics: Iterable[str]) -> float | None:
    """Of the topic that keeps its messages shortest; None where all keep them for ever."""
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    with _connect(bootstrap) as admin:
        found = admin.describe_configs(asked, config_filter="all")["topic"]
    kept = [int(settings["retention.ms"]["value"]) for settings in found.values() if "retention.ms" in settings]
    return min((own / 1_000 for own in kept if own >= 0), default=None)


def drop_messages(bootstrap: str, before: dict[str, int]) -> None:
    """Make the log forget all messages before an offset, by topic/partition, as a short retention would."""
    with _connect(bootstrap) as admin:
        admin.delete_records({TopicPartition(place.rpartition("/")[0], int(place.rpartition("/")[2])): at for place, at in before.items()})


@contextmanager
def _connect(bootstrap: str) -> Iterator[KafkaAdminClient]:
    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=10_000)
    except (KafkaError, OSError, ValueError):
        raise Refusal(f"no Kafka broker answers at {bootstrap}: run `weir up`, or correct WEIR_KAFKA") from None
    with admin:
        yield admin
