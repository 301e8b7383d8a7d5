"""The embedded stack with a real broker: what it keeps, what it refuses, and that it touches nothing but its own."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer

from weir import stack
from weir.event_time import utc_now
from weir.jars import fetch_jars, kafka_jars, spark_jars
from weir.layout import Home
from weir.records.driver import Identity
from weir.refusal import Refusal
from weir.stack import Broker, KafkaRecord


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    fetch_jars()


@pytest.fixture
def new_home(tmp_path: Path) -> Iterator[Callable[[str], Home]]:
    """Makes homes whose brokers are stopped at the end, however the test ends."""
    homes: list[Home] = []

    def make(name: str) -> Home:
        homes.append(Home(tmp_path / name))
        return homes[-1]

    yield make
    for home in homes:
        stack.stop_kafka(home)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, KafkaRecord]]:
    """One broker, started by two at once, for the tests that leave it as it is."""
    home = Home(tmp_path_factory.mktemp("running") / "home, with [odd] name")
    try:
        with ThreadPoolExecutor() as threads:
            records = list(threads.map(stack.start_kafka, [home, home]))
        assert records[0] == records[1]
        yield home, records[0]
    finally:
        stack.stop_kafka(home)


def send(address: str, topic: str, *messages: bytes) -> None:
    with KafkaProducer(bootstrap_servers=address) as producer:
        for message in messages:
            producer.send(topic, message, partition=0).get(timeout=60)


def receive(address: str, topic: str) -> list[bytes]:
    expected = sum(stack.end_offsets(address, [topic]).values())
    with KafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=10_000) as consumer:
        return [message.value for message in islice(consumer, expected)]


def refusal_of(act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as refused:
        act()
    line = str(refused.value)
    assert "\n" not in line
    return line


def pick_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- What it keeps


def test_messages_survive_a_stop_and_a_start_on_another_port(new_home: Callable[[str], Home]) -> None:
    home = new_home("home")
    first = stack.start_kafka(home)
    assert stack.create_topics(first.address, {"orders": 2}) == ["orders"]
    send(first.address, "orders", b"one")
    assert stack.stop_kafka(home)
    assert not first.alive

    again = stack.start_kafka(home)
    assert ports_of(again) == ports_of(first)
    assert receive(again.address, "orders") == [b"one"]
    assert stack.stop_kafka(home)

    with socket.create_server(("127.0.0.1", first.brokers[0].controller_port)):
        moved = stack.start_kafka(home, port=pick_free_port())
    assert moved.brokers[0].port != first.brokers[0].port
    assert moved.brokers[0].controller_port != first.brokers[0].controller_port
    send(moved.address, "orders", b"two")
    assert receive(moved.address, "orders") == [b"one", b"two"]


def test_messages_survive_a_kill_of_the_broker(new_home: Callable[[str], Home]) -> None:
    home = new_home("home")
    first = stack.start_kafka(home)
    stack.create_topics(first.address, {"orders": 1})
    send(first.address, "orders", b"one")
    kill(first.brokers[0])

    assert not stack.kafka_state(home).running
    assert not stack.stop_kafka(home)
    again = stack.start_kafka(home)
    assert pid_of(again.brokers[0]) != pid_of(first.brokers[0])
    assert receive(again.address, "orders") == [b"one"]


def test_of_three_brokers_one_may_die(new_home: Callable[[str], Home]) -> None:
    home = new_home("home")
    record = stack.start_kafka(home, brokers=3)
    assert record.address.count(",") == 2 and stack.kafka_state(home).alive == 3
    stack.create_topics(record.address, {"orders": 1})
    send(record.address, "orders", b"one")

    kill(record.brokers[0])
    state = stack.kafka_state(home)
    assert (state.running, state.healthy, state.alive, state.brokers) == (True, False, 2, 3)
    send(record.address, "orders", b"two")
    assert receive(record.address, "orders") == [b"one", b"two"]

    whole = stack.start_kafka(home)
    assert ports_of(whole) == ports_of(record) and [pid_of(own) for own in whole.brokers[1:]] == [pid_of(own) for own in record.brokers[1:]]
    assert stack.kafka_state(home).healthy
    assert "was begun with 3 brokers" in refusal_of(lambda: stack.start_kafka(home, brokers=1))
    assert stack.stop_kafka(home) and not whole.alive
    assert receive(stack.start_kafka(home).address, "orders") == [b"one", b"two"]
    assert stack.kafka_state(home).alive == 3


def test_formatting_cut_short_is_finished_by_the_next_start(new_home: Callable[[str], Home]) -> None:
    home = new_home("home")
    stack.start_kafka(home)
    stack.stop_kafka(home)
    for file in (home.kafka / "topics").iterdir():
        file.unlink()

    assert stack.create_topics(stack.start_kafka(home).address, {"orders": 1}) == ["orders"]


# --- One broker per home


def test_starting_a_running_broker_changes_nothing(running: tuple[Home, KafkaRecord]) -> None:
    home, record = running
    assert stack.start_kafka(home) == stack.start_kafka(home, port=record.brokers[0].port) == record


def test_two_homes_run_side_by_side(running: tuple[Home, KafkaRecord], new_home: Callable[[str], Home]) -> None:
    home, record = running
    other_home = new_home("other")
    other = stack.start_kafka(other_home)
    stack.create_topics(record.address, {"here": 1})
    assert stack.missing_topics(other.address, ["here"]) == ["here"]

    assert stack.stop_kafka(other_home)
    assert stack.kafka_state(home).healthy


def test_broker_whose_record_is_lost_is_not_joined_by_a_second(running: tuple[Home, KafkaRecord]) -> None:
    home, record = running
    home.stack_record.unlink()
    try:
        assert "Failed to acquire lock" in refusal_of(lambda: stack.start_kafka(home))
    finally:
        record.write(home.stack_record)
    stack.create_topics(record.address, {"kept": 1})
    send(record.address, "kept", b"one")
    assert receive(record.address, "kept") == [b"one"]


def test_record_with_a_reused_pid_is_neither_alive_nor_stopped(new_home: Callable[[str], Home]) -> None:
    home = new_home("home")
    stranger = Identity.of_this_process().model_copy(update={"started_at": 1_000_000.0})
    KafkaRecord(brokers=[Broker(identity=stranger, port=9092, controller_port=9093)], started_at=utc_now()).write(home.stack_record)

    assert not stack.kafka_state(home).running
    assert not stack.stop_kafka(home)
    assert "Kafka is not running" in refusal_of(lambda: stack.bootstrap(home))


# --- What a running broker shows


def test_state_and_address_tell_of_the_running_broker(running: tuple[Home, KafkaRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    home, record = running
    state = stack.kafka_state(home)
    assert (state.running, state.healthy, state.port, state.pid) == (True, True, record.brokers[0].port, pid_of(record.brokers[0]))
    assert state.uptime_seconds > 0
    assert 0 < state.data_bytes < 50_000_000

    monkeypatch.delenv("WEIR_KAFKA", raising=False)
    assert stack.bootstrap(home) == f"127.0.0.1:{record.brokers[0].port}"
    monkeypatch.setenv("WEIR_KAFKA", "broker-1:9092")
    assert stack.bootstrap(home) == "broker-1:9092"
    assert not stack.kafka_state(home).running  # of those brokers, not of the home's own
    monkeypatch.setenv("WEIR_KAFKA", record.address)
    named = stack.kafka_state(home)
    assert (named.elsewhere, named.running, named.alive, named.address) == (True, True, 1, record.address)


def test_nothing_listens_beyond_this_machine(running: tuple[Home, KafkaRecord]) -> None:
    _, record = running
    listening = [c.laddr for c in psutil.Process(pid_of(record.brokers[0])).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == set(ports_of(record))


def test_topics_are_created_once_and_their_ends_counted(running: tuple[Home, KafkaRecord]) -> None:
    _, record = running
    assert stack.create_topics(record.address, {"clicks": 2, "orders": 1}) == ["clicks", "orders"]
    assert stack.create_topics(record.address, {"clicks": 3, "views": 1}) == ["views"]
    send(record.address, "clicks", b"a", b"b")
    assert stack.end_offsets(record.address, ["clicks", "orders"]) == {"clicks/0": 2, "clicks/1": 0, "orders/0": 0}
    assert "topic nowhere is not on" in refusal_of(lambda: stack.end_offsets(record.address, ["clicks", "nowhere"]))


# --- What it refuses, in one line


def test_taken_port_is_refused(new_home: Callable[[str], Home]) -> None:
    home = new_home("home")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal_of(lambda: stack.start_kafka(home, port=port))
    assert line == f"port {port} on 127.0.0.1 is taken: stop what listens there or choose another with --kafka-port"
    assert not home.stack_record.exists()


def test_another_port_for_a_running_broker_is_refused(running: tuple[Home, KafkaRecord]) -> None:
    home, record = running
    assert f"already runs on port {record.brokers[0].port}" in refusal_of(lambda: stack.start_kafka(home, port=pick_free_port()))


def test_silent_address_is_refused() -> None:
    assert "no Kafka broker answers at 127.0.0.1:nine" in refusal_of(lambda: stack.create_topics("127.0.0.1:nine", {"orders": 1}))


def test_missing_java_is_refused(new_home: Callable[[str], Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Java 17 or 21 is needed and none was found" in refusal_of(lambda: stack.start_kafka(new_home("home")))


def test_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"Java 11 was found at {java}" in refusal_of(stack.find_java)


def test_missing_jars_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = fetch_jars()
    monkeypatch.setenv("WEIR_JARS", str(tmp_path / "jars"))
    assert "run `weir jars`" in refusal_of(spark_jars)
    shutil.copytree(fetched, tmp_path / "jars", copy_function=os.symlink)
    lost = spark_jars()[0]
    (tmp_path / "jars" / "spark" / lost.name).unlink()
    assert refusal_of(kafka_jars) == f"spark/{lost.name} is not in {tmp_path / 'jars'}: run `weir jars`"


def test_jars_that_cannot_be_fetched_are_named_and_leave_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
    line = refusal_of(fetch_jars)
    assert "org.apache.kafka#kafka-clients;3.9.2 and 10 more could not be fetched" in line
    assert [file.name for file in tmp_path.iterdir()] == ["jars.log"]


def ports_of(record: KafkaRecord) -> list[int]:
    return [port for broker in record.brokers for port in (broker.port, broker.controller_port)]


def pid_of(broker: Broker) -> int:
    assert broker.identity
    return broker.identity.pid


def kill(broker: Broker) -> None:
    os.kill(pid_of(broker), signal.SIGKILL)
    psutil.Process(pid_of(broker)).wait(10)
