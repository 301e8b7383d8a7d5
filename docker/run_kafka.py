"""Becomes the broker of the containers: the embedded one's settings, with one listener for the other containers and one for the host."""

import os
import secrets
import subprocess
from importlib.util import find_spec
from pathlib import Path

from weir.processes import find_java
from weir.stack import SETTINGS, kafka_jars

FOLDER = Path("/var/lib/weir/kafka")
PORT, CONTROLLER_PORT = 9092, 9093

LISTENERS = """
# Of two lines with the same name the last one holds.
listeners=PLAINTEXT://:{port},HOST://:{host_port},CONTROLLER://localhost:{controller_port}
advertised.listeners=PLAINTEXT://kafka:{port},HOST://127.0.0.1:{host_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT
"""


def main() -> None:
    java = [find_java(), f"-Xmx{os.environ.get('KAFKA_HEAP', '512m')}", "-cp", class_path(), "-Dlog4j2.level=WARN"]
    os.chdir(FOLDER)
    ports = {"port": PORT, "controller_port": CONTROLLER_PORT}
    listeners = LISTENERS.format(host_port=int(os.environ["KAFKA_PORT"]), **ports)
    Path("server.properties").write_text(SETTINGS.format(host="localhost", **ports) + listeners)
    format_storage(java)
    os.execv(java[0], [*java, "kafka.Kafka", "server.properties"])  # noqa: S606 (signals shall reach the broker itself)


def class_path() -> str:
    """The broker's jars, behind PySpark's slf4j and log4j: Kafka's own lack the piece that joins the two, and would log nothing."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    names = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
    logging = [jar for name in names for jar in Path(pyspark.origin).parent.glob(f"jars/{name}-[0-9]*.jar")]
    return os.pathsep.join(map(str, [*logging, kafka_jars()[0].parent / "*"]))


def format_storage(java: list[str]) -> None:
    """Make a new volume ready. The cluster's id is kept first: a formatting that was cut short is finished with the same one."""
    if all(Path(folder, "meta.properties").is_file() for folder in ("metadata", "topics")):
        return
    kept = Path("cluster_id")
    if not kept.exists():
        new = Path("cluster_id.new")
        new.write_text(f"weir{secrets.token_urlsafe(16)[4:]}")
        new.rename(kept)
    tool = ["kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted", "-t", kept.read_text(), "-c", "server.properties"]
    subprocess.run([*java, *tool], check=True)


if __name__ == "__main__":
    main()
