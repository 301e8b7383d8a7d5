"""Becomes a broker of the containers: the embedded one's settings, with one listener for the other containers and one for the host.

KAFKA_BROKERS names all of them, in the order of their numbers: each container that is one of them finds itself by its own name.
"""

import os
import secrets
import socket
import subprocess
from pathlib import Path

from weir.processes import find_java
from weir.stack import broker_settings, format_command, kafka_class_path

FOLDER = Path("/var/lib/weir/kafka")
PORT, CONTROLLER_PORT = 9092, 9093

LISTENERS = """
# Of two lines with the same name the last one holds.
listeners=PLAINTEXT://:{port},HOST://:{host_port},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{name}:{port},HOST://127.0.0.1:{host_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT
"""


def main() -> None:
    java = [find_java(), f"-Xmx{os.environ.get('KAFKA_HEAP', '512m')}", "-cp", kafka_class_path(), "-Dlog4j2.level=WARN"]
    os.chdir(FOLDER)
    names = os.environ["KAFKA_BROKERS"].split(",")
    own = names.index(socket.gethostname())
    alone = len(names) == 1
    controllers = {n: f"{'localhost' if alone else name}:{CONTROLLER_PORT}" for n, name in enumerate(names, start=1)}
    host_port = int(os.environ["KAFKA_PORT"]) + own
    listeners = LISTENERS.format(name=names[own], port=PORT, host_port=host_port, controller=controllers[own + 1])
    Path("server.properties").write_text(broker_settings(own + 1, "localhost", PORT, controllers) + listeners)
    format_storage(java, len(names))
    os.execv(java[0], [*java, "kafka.Kafka", "server.properties"])  # noqa: S606 (signals shall reach the broker itself)


def format_storage(java: list[str], brokers: int) -> None:
    """Make a new volume ready. The cluster's id is kept first: a formatting that was cut short is finished with the same one."""
    if all(Path(folder, "meta.properties").is_file() for folder in ("metadata", "topics")):
        return
    kept = Path("cluster_id")
    if not kept.exists():
        new = Path("cluster_id.new")
        new.write_text(os.environ.get("KAFKA_CLUSTER_ID") or f"weir{secrets.token_urlsafe(16)[4:]}")
        new.rename(kept)
    subprocess.run([*java, *format_command(kept.read_text(), brokers)], check=True)


if __name__ == "__main__":
    main()
