"""The embedded stack: real Kafka brokers, one or three, per home and on this machine only."""

import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from kafka import KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from weir.event_time import utc_now
from weir.jars import kafka_jars, pyspark_jars
from weir.layout import Home
from weir.processes import HOST, Say, choose_port, end_processes, find_java, lock_stack, open_log, say_nothing
from weir.records.driver import Identity
from weir.records.record import Record
from weir.refusal import Refusal

FREE_BYTES_NEEDED = 1_000_000_000
"""Kafka dies in the middle of a write when its disk is full: better not to start."""

START_SECONDS = 60
"""A start takes 3 s on an idle machine; after a crash 9 s more, which Kafka waits for its dead self; on a crowded machine far longer."""

SETTINGS = """\
# Written by Weir at every start.
node.id={number}
process.roles=broker,controller
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
controller.listener.names=CONTROLLER
{quorum}

# Two folders: Kafka then locks the first before it writes. With one, a second broker damages it before it notices the lock.
# Both are relative to the broker's working folder, so that a home may have any name and may be moved.
metadata.log.dir=metadata
log.dirs=topics

# Simulated days lie in the past: by their age these messages would expire at once.
log.retention.ms=-1
auto.create.topics.enable=false
num.partitions=2

# With three brokers a message is acknowledged when two have it, so one may die without a loss.
default.replication.factor={replicas}
min.insync.replicas={acknowledge}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={acknowledge}

# Small and quick to start.
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=4194304
"""
MAX_REPLICAS = 3


def broker_settings(number: int, host: str, port: int, controllers: dict[int, str]) -> str:
    """What a broker is told, which is one of as many as there are controllers, given by their numbers with host and port."""
    replicas = min(len(controllers), MAX_REPLICAS)
    own_controller = int(controllers[number].rpartition(":")[2])
    return SETTINGS.format(
        number=number,
        host=host,
        port=port,
        controller_port=own_controller,
        quorum=_quorum(controllers),
        replicas=replicas,
        acknowledge=max(1, replicas - 1),
    )


def _quorum(controllers: dict[int, str]) -> str:
    """One controller keeps in its folder who it is. Several are told of each other at each start: so their ports may change."""
    if len(controllers) == 1:
        return f"controller.quorum.bootstrap.servers={controllers[1]}"
    return "controller.quorum.voters=" + ",".join(f"{number}@{place}" for number, place in sorted(controllers.items()))


def format_command(cluster_id: str, brokers: int) -> list[str]:
    """The program that makes a broker's folders ready, with its arguments."""
    command = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id, "-c", "server.properties"]
    return command + (["--standalone"] if brokers == 1 else [])


class Broker(Record):
    """One process of Kafka, and where it listens."""

    identity: Identity | None
    """None: it was not started yet."""
    port: int
    controller_port: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def is_alive(self) -> bool:
        return self.identity is not None and self.identity.is_alive()


class KafkaRecord(Record):
    """Which processes are the brokers of a home. It outlives them: the next start takes as many, and the same ports."""

    brokers: list[Broker]
    started_at: datetime

    @property
    def address(self) -> str:
        """All of them: whoever asks is answered as long as one of them lives."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def alive(self) -> list[Broker]:
        return [broker for broker in self.brokers if broker.is_alive()]


class KafkaCluster(Record):
    """The id that all of a home's Kafka folders bear. Kept before they are formatted, so that a formatting cut short can be finished."""

    cluster_id: str


class KafkaState(Record):
    """How the brokers that a home uses are now. Healthy means that all of them live, and that one answered a request just now.

    Brokers that somebody else runs (WEIR_KAFKA) are known by their answer alone: how many they say they are.
    """

    running: bool
    healthy: bool
    address: str | None
    elsewhere: bool
    """Somebody else runs them."""
    brokers: int
    alive: int
    port: int | None = None
    pid: int | None = None
    uptime_seconds: float = 0
    data_bytes: int = 0


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""For a Java that lives for minutes: without its dear second compiler a short Spark job takes two thirds of the time. With it goes
most of the room for compiled code, which several queries of Spark need: they would die for want of it."""

# --- The broker


def start_kafka(home: Home, port: int | None = None, brokers: int | None = None, say: Say = say_nothing) -> KafkaRecord:
    """Brokers that answer: those that already run, and new ones in place of those that do not, on what the last have kept.

    A start that was interrupted is taken up again: brokers are recorded before they are waited for.
    """
    with lock_stack(home, say):
        record = _read_record(home)
        if record and brokers not in (None, len(record.brokers)):
            before = "1 broker" if len(record.brokers) == 1 else f"{len(record.brokers)} brokers"
            raise Refusal(f"Kafka of {home.root} was begun with {before}: leave out --brokers, or choose another folder with WEIR_HOME")
        if record and record.alive and port not in (None, record.brokers[0].port):
            raise Refusal(f"Kafka already runs on port {record.brokers[0].port}: stop it with `weir down`, or leave out --kafka-port")
        if record is None or len(record.alive) < len(record.brokers):
            record = _launch(home, record, port, len(record.brokers) if record else brokers or 1, say)
        _await_answer(home, record)
        return record


def stop_kafka(home: Home, say: Say = say_nothing) -> bool:
    """Stop the brokers of this home and nothing else; whether there was one. What they have kept stays."""
    if _read_record(home) is None:
        return False
    with lock_stack(home, say):
        record = _read_record(home)
        if record is None or not record.alive:
            return False
        say("stopping Kafka")
        end_processes([broker.identity for broker in record.alive if broker.identity])
        return True


def kafka_state(home: Home) -> KafkaState:
    """How the brokers are, asked anew. Changes nothing and waits a few seconds at most."""
    if named := os.environ.get("WEIR_KAFKA"):
        answering = _admitted(_describe(named))
        there = answering > 0
        return KafkaState(running=there, healthy=there, address=named, elsewhere=True, brokers=answering, alive=answering)
    record = _read_record(home)
    brokers = record.brokers if record else []
    alive = record.alive if record else []
    return KafkaState(
        running=bool(alive),
        healthy=record is not None and len(alive) == len(brokers) and _answers(home, record),
        address=record.address if record else None,
        elsewhere=False,
        port=brokers[0].port if brokers else None,
        pid=next((broker.identity.pid for broker in alive if broker.identity), None),
        brokers=len(brokers),
        alive=len(alive),
        uptime_seconds=(utc_now() - record.started_at).total_seconds() if record and alive else 0,
        data_bytes=_count_bytes(home.kafka),
    )


def bootstrap(home: Home) -> str:
    """The brokers to talk to: those of WEIR_KAFKA, else the one of this home."""
    if brokers := os.environ.get("WEIR_KAFKA"):
        return brokers
    record = _read_record(home)
    if record is None or not record.alive:
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


def _launch(home: Home, last: KafkaRecord | None, wanted_port: int | None, brokers: int, say: Say) -> KafkaRecord:
    """New processes for those brokers that do not run, recorded but not yet ready."""
    java = [find_java(), "-Xmx512m", "-cp", kafka_class_path(), "-Dlog4j2.level=WARN"]
    if shutil.disk_usage(home.root).free < FREE_BYTES_NEEDED:
        raise Refusal(f"less than 1 GB is free on the disk of {home.root}: free some, or choose another folder with WEIR_HOME")
    home.kafka.mkdir(exist_ok=True, mode=0o700)
    places = _choose_places(last, wanted_port, brokers)
    controllers = {number: f"{HOST}:{own.controller_port}" for number, own in enumerate(places, start=1)}
    for number, own in enumerate(places, start=1):
        if own.is_alive():
            continue
        folder = _broker_folder(home, number)
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / "server.properties").write_text(broker_settings(number, HOST, own.port, controllers))
        with open_log(_broker_log(home, number)) as log:
            _format_storage(home, number, brokers, java, log)
            say(f"starting Kafka on {own.address}")
            process = subprocess.Popen(
                [*java, "kafka.Kafka", str((folder / "server.properties").resolve())],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        places[number - 1] = own.model_copy(update={"identity": Identity.of(process.pid)})
        record = KafkaRecord(brokers=places, started_at=utc_now())
        record.write(home.stack_record)
    return record


def _broker_folder(home: Home, number: int) -> Path:
    return home.kafka if number == 1 else home.kafka / str(number)


def _broker_log(home: Home, number: int) -> Path:
    return home.log("kafka" if number == 1 else f"kafka-{number}")


def kafka_class_path() -> str:
    """The broker's jars, behind PySpark's slf4j and log4j: Kafka's own lack the piece that joins the two, and would log nothing."""
    logging = pyspark_jars("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
    return os.pathsep.join(map(str, [*logging, kafka_jars()[0].parent / "*"]))


def _choose_places(last: KafkaRecord | None, wanted_port: int | None, brokers: int) -> list[Broker]:
    """The ports of each broker and of its controller, all different: those of the last start where they are free."""
    places = list(last.brokers) if last else [Broker(identity=None, port=0, controller_port=0)] * brokers
    taken = {port for broker in places if broker.is_alive() for port in (broker.port, broker.controller_port)}

    def choose(before: int, wanted: int | None, option: str) -> int:
        found = choose_port(before if before and before not in taken else None, wanted, option)
        while found in taken:
            found = choose_port(None, None, "")
        taken.add(found)
        return found

    for index, own in enumerate(places):
        if not own.is_alive():
            port = choose(own.port, wanted_port if index == 0 else None, "--kafka-port")
            places[index] = Broker(identity=None, port=port, controller_port=choose(own.controller_port, None, ""))
    return places


def _format_storage(home: Home, number: int, brokers: int, java: list[str], log: IO[bytes]) -> None:
    """Make a broker's folders ready for their first use. Each gets its meta.properties last: where one lacks it, this is done again."""
    folder = _broker_folder(home, number)
    if all((folder / part / "meta.properties").is_file() for part in ("metadata", "topics")):
        return
    kept = home.kafka / "cluster.json"
    cluster = KafkaCluster.read(kept) or KafkaCluster(cluster_id=f"weir{secrets.token_urlsafe(16)[4:]}")
    cluster.write(kept)
    command = [*java, *format_command(cluster.cluster_id, brokers)]
    if subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode:
        named = _broker_log(home, number)
        raise Refusal(f"Kafka's folders could not be formatted: {_find_complaint(named)}; log: {named}")


def _await_answer(home: Home, record: KafkaRecord) -> None:
    """Wait until all brokers answer; refuse when one dies before, or it takes too long."""

    def check() -> bool:
        for number, broker in enumerate(record.brokers, start=1):
            if not broker.is_alive():
                log = _broker_log(home, number)
                raise Refusal(f"Kafka ended while starting: {_find_complaint(log)}; log: {log}")
        return _answers(home, record)

    try:
        Retrying(stop=stop_after_delay(START_SECONDS), wait=wait_fixed(0.2), retry=retry_if_result(lambda ready: not ready))(check)
    except RetryError:
        advice = "wait on with `weir up`, or end it with `weir down`"
        log = home.log("kafka")
        raise Refusal(f"Kafka does not answer on {record.address} after {START_SECONDS} s: {advice}; log: {log}") from None


def _answers(home: Home, record: KafkaRecord) -> bool:
    """Whether the brokers that listen there are this home's, take requests and are admitted to its cluster."""
    try:
        for broker in record.brokers:
            socket.create_connection((HOST, broker.port), timeout=1).close()
    except OSError:
        return False
    own, answer = KafkaCluster.read(home.kafka / "cluster.json"), _describe(record.address)
    return own is not None and answer.get("cluster_id") == own.cluster_id and _admitted(answer) == len(record.brokers)


def _describe(address: str) -> dict[str, Any]:
    """What brokers say of their cluster; nothing where none answers."""
    try:
        with KafkaAdminClient(bootstrap_servers=address, bootstrap_timeout_ms=5_000, request_timeout_ms=5_000) as admin:
            return cast(dict[str, Any], admin.describe_cluster())
    except (OSError, ValueError, KafkaError):
        return {}


def _admitted(answer: dict[str, Any]) -> int:
    """How many brokers the cluster works with."""
    return sum(not broker.get("is_fenced") for broker in answer.get("brokers", []))  # brokers before Kafka 4 do not say it


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


def delete_topics(bootstrap: str, topics: list[str]) -> None:
    with _connect(bootstrap) as admin, suppress(UnknownTopicOrPartitionError):
        admin.delete_topics(topics)


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
