"""Strangers' questions are answered in a process of their own, which the kernel ends when it takes too long or too much.

DuckDB looks at an interrupt only between rows, and not all that it allocates counts as its memory: `SELECT repeat('x', 1000000000)`
takes gigabytes and half a minute, whatever is set. Here an alarm and a limit of address space hold without its help. Such a
process waits for the next question with its tables open; one that was ended is replaced.

Questions and answers are JSON, one line each, by standard input and output: a process that somebody got the better of can send
wrong answers, and nothing else.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
from pydantic import ValidationError

from weir.answers import MOST_BYTES, PlainAnswer
from weir.asking import Limits, too_long_line
from weir.refusal import Refusal

MOST_PROCESSES = 2
PATIENCE_SECONDS = 5.0
"""How long a question waits for others to be answered."""
GRACE_SECONDS = 2
"""After DuckDB's own interrupt, until the alarm."""
ROOM_MB = 256
"""Beyond what DuckDB counts itself: the answer's rows, and what Arrow reads ahead."""
HARD_MB = 4_096
"""Of address space, most of it never used: it stops the one allocation that would be too large at once."""
LOOK_SECONDS = 0.02
OUT_OF_MEMORY = 3
IDLE_SECONDS = 900.0
"""Then a process that nobody has asked is ended; it holds some 200 MB."""


class AskingProcess:
    """One process, as its owner sees it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "weir.asking_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.asked_at = time.monotonic()

    def ask(self, lake_root: str, folder: Path, sql: str, limits: Limits) -> PlainAnswer:
        assert self._process.stdin is not None and self._process.stdout is not None
        self.asked_at = time.monotonic()
        question = {"lake": lake_root, "folder": str(folder), "sql": sql, "limits": asdict(limits)}
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline(MOST_BYTES + 2)
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise Refusal(self._how_it_ended(limits))
        told, text = line[:1], line[1:]
        if told != b"+":
            raise Refusal(json.loads(text)["refusal"])
        try:
            return PlainAnswer.model_validate_json(text)
        except ValidationError:
            self.end()
            raise Refusal("the answer cannot be read") from None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _how_it_ended(self, limits: Limits) -> str:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = 0
        self.end()
        if code == -signal.SIGALRM:
            return too_long_line(limits)
        return f"the answer took more than {limits.memory_mb:,} MB of memory: ask for fewer days or shorter texts"


class AskingProcesses:
    """A few of them, shared by all who ask; started when they are needed."""

    def __init__(self, most: int = MOST_PROCESSES) -> None:
        self._free: list[AskingProcess] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(most)

    def ask(self, lake_root: str, folder: Path, sql: str, limits: Limits) -> PlainAnswer:
        with self._one() as process:
            return process.ask(lake_root, folder, sql, limits)

    def prepare(self) -> None:
        """Somebody is about to ask: have a process ready, which takes a second or two to start."""
        if self._places.acquire(blocking=False):
            try:
                with self._lock:
                    if not self._free:
                        self._free.append(AskingProcess())
            finally:
                self._places.release()

    @contextmanager
    def _one(self) -> Iterator[AskingProcess]:
        if not self._places.acquire(timeout=PATIENCE_SECONDS):
            raise Refusal("others are asking right now: try again in a few seconds")
        try:
            with self._lock:
                process = self._free.pop() if self._free else AskingProcess()
            try:
                yield process
            finally:
                with self._lock:
                    # The one that was asked last has its tables open: it is the next to be asked.
                    self._free.append(process if process.is_alive else AskingProcess())
                    idle = [own for own in self._free[:-1] if time.monotonic() - own.asked_at > IDLE_SECONDS]
                    self._free = [own for own in self._free if own not in idle]
                for own in idle:
                    own.end()
        finally:
            self._places.release()

    def end(self) -> None:
        with self._lock:
            for process in self._free:
                process.end()
            self._free.clear()


def main() -> None:
    """Answer one question after the other until the owner is gone."""
    from weir.answers import plain_answer
    from weir.layout import Lake
    from weir.overview import Declarations
    from weir.serving import answer_query

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    declarations, watch = Declarations(), MemoryWatch()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        limits = Limits(**asked["limits"])
        watch.begin(limits)
        signal.alarm(int(limits.seconds) + GRACE_SECONDS)
        began = time.monotonic()
        try:
            pipeline = declarations.load_folder(Path(asked["folder"]))
            found = answer_query(Lake(asked["lake"]), [pipeline], asked["sql"], limits)
            told = plain_answer(found.columns, found.types, found.rows, found.is_cut, time.monotonic() - began)
            text = b"+" + told.model_dump_json().encode(errors="replace")
            if len(text) > MOST_BYTES:
                raise Refusal(f"the answer has more than {MOST_BYTES // 2**20} MB: ask for fewer rows or columns")
        except Refusal as refusal:
            text = b"-" + json.dumps({"refusal": str(refusal)}).encode()
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        signal.alarm(0)
        answers.write(text + b"\n")
        answers.flush()


class MemoryWatch:
    """Ends this process when it has taken more than the question may since it came."""

    def __init__(self) -> None:
        self._process, self._most = psutil.Process(), float("inf")
        resource.setrlimit(resource.RLIMIT_DATA, (HARD_MB * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self, limits: Limits) -> None:
        self._most = self._process.memory_info().rss + (limits.memory_mb + ROOM_MB) * 2**20

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            if self._process.memory_info().rss > self._most:
                os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
