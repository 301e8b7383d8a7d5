"""The jars of ivy.xml: fetched once into a cache that all checkouts share, whole or not at all."""

import re
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

from py4j.java_gateway import JavaGateway

from weir.layout import IVY_FILE, LOG_STORE_SOURCE, Home, jars_folder
from weir.processes import Say, find_java, pyspark_folder, say_nothing
from weir.refusal import Refusal

STALL_SECONDS = 120
"""Ivy itself waits for ever on a network that swallows its packets."""
JARS_LIST = "jars.txt"
"""Stands beside the jars and names them: a jar that was lost is told from one that nobody asked for."""


def fetch_jars(say: Say = say_nothing) -> Path:
    """The folder with the jars that Weir runs on, fetched where they are missing."""
    return _fetch(jars_folder(), ("spark", "kafka", "s3"), "the jars of Spark's connectors and of Kafka: 74 MB, about a minute", say)


def fetch_store(say: Say = say_nothing) -> Path:
    """The jar of the object store that tests and containers run, fetched where it is missing."""
    folder = jars_folder()
    folder = _fetch(folder.with_name(f"{folder.name}-store"), ("store",), "an object store: 55 MB, half a minute", say)
    (jar,) = (folder / "store").glob("*.jar")
    return jar


def _fetch(folder: Path, parts: tuple[str, ...], what: str, say: Say) -> Path:
    """They become visible by one rename, whole. Of two processes that fetch at once, the second to finish throws its own away."""
    if _missing_jar(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        workplace = tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-")
    except OSError as error:
        raise Refusal(f"{folder.parent} cannot be written ({error.strerror}): choose another folder with WEIR_JARS") from None
    with workplace as name:
        say(f"fetching {what}")
        log = Path(name, "log")
        if not _run_ivy(Path(name), parts, log, say):
            log = log.replace(folder.with_name(f"{folder.name}.log"))
            raise Refusal(f"{_name_unresolved(log)}: check the network and Maven's settings, then run `weir jars`; log: {log}")
        fetched = Path(name, "jars")
        if "s3" in parts:
            say("compiling the log store")
            _compile_log_store(fetched)
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
    """What a Spark session needs besides PySpark's own jars, for the lake that the environment names."""
    return _list_jars("spark") + (_list_jars("s3") if Home.from_environment().lake.is_remote else [])


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


def pyspark_jars(*names: str) -> list[Path]:
    """Those jars that PySpark ships, in this order."""
    return [jar for name in names for jar in pyspark_folder().glob(f"jars/{name}-[0-9]*.jar")]


def _run_ivy(workplace: Path, parts: tuple[str, ...], log: Path, say: Say) -> bool:
    """Whether Ivy could fetch everything. It is ended when it has said nothing for too long."""
    command = [find_java(), "-cp", str(pyspark_jars("ivy")[0]), "org.apache.ivy.Main", "-ivy", str(IVY_FILE)]
    command += ["-confs", *parts, "-cache", "cache", "-retrieve", "jars/[conf]/[artifact]-[revision].[ext]"]
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


def _compile_log_store(fetched: Path) -> None:
    """By the compiler that Spark brings: a Java that can only run is enough."""
    needed = pyspark_jars("janino", "commons-compiler", "hadoop-client-api", "slf4j-api") + list(
        (fetched / "spark").glob("delta-storage-*.jar")
    )
    gateway = JavaGateway.launch_gateway(java_path=find_java(), classpath=":".join(map(str, needed)), die_on_exit=True)
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(LOG_STORE_SOURCE.read_text(encoding="utf-8"))
        with zipfile.ZipFile(fetched / "s3" / "weir-log-store.jar", "w") as jar:
            for name, code in dict(compiler.getBytecodes()).items():
                jar.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    finally:
        gateway.shutdown()
