"""Waits beside a driver without holding a slot: reads its records until the shift is over or something has to be decided."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from airflow.configuration import conf
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent

from weir.event_time import utc_now
from weir.jobs import stop_or_kill
from weir.lake_files import store_trouble
from weir.layout import Home
from weir.levels import Breaches, compare_breaches
from weir.loader import load_named
from weir.overview import levels_of
from weir.records.driver import Control, Heartbeat
from weir.refusal import Refusal
from weir.supervision import BEAT_SECONDS, Act, Policy, Seen, decide, observe
from weir_airflow.alerts import tell

SAY_SECONDS = 30
"""A batch ends every second; its line every half a minute is enough to see a stream move, and a shift's log stays small."""

KILL_MARGIN_SECONDS = 5
LEVEL_SECONDS = 20


_STOPPING: set[asyncio.Task[None]] = set()
"""What goes on after its trigger has ended: the event loop itself holds tasks only weakly."""


class HeartbeatTrigger(BaseTrigger):
    """Fires once: at the end of the shift, at `wake_at`, or when the driver is no longer one to be left alone.

    What a person does to the deferred task arrives in on_kill; a triggerer that ends or moves touches nothing.
    """

    def __init__(self, pipeline: str, dag_id: str, run_id: str, task_id: str, shift_ends_at: str, wake_at: str | None) -> None:
        super().__init__()
        self.pipeline, self.shift_ends_at, self.wake_at = pipeline, shift_ends_at, wake_at
        self.of_dag, self.of_run, self.of_task = dag_id, run_id, task_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        told = {"pipeline": self.pipeline, "shift_ends_at": self.shift_ends_at, "wake_at": self.wake_at}
        place = {"dag_id": self.of_dag, "run_id": self.of_run, "task_id": self.of_task}
        return f"{type(self).__module__}.{type(self).__qualname__}", told | place

    async def run(self) -> AsyncIterator[TriggerEvent]:
        control, ends_at = Control(Home.from_environment().lake.control(self.pipeline)), datetime.fromisoformat(self.shift_ends_at)
        wake_at = datetime.fromisoformat(self.wake_at) if self.wake_at else None
        told, look_at_levels = _Told(), utc_now()
        while True:
            now = utc_now()
            if wake_at:
                if now >= wake_at:
                    yield TriggerEvent({"what": "the wait is over"})
                    return
            elif seen := await asyncio.to_thread(self._observe, control):
                if now >= look_at_levels:
                    look_at_levels = now + timedelta(seconds=LEVEL_SECONDS)
                    await asyncio.to_thread(self._tell_of_levels, seen.heartbeat)
                if line := told.line(seen.heartbeat):
                    self.log.info(line)
                decided = decide(seen, Policy(), now)
                if decided.act not in (Act.ADOPT, Act.LEAVE):
                    yield TriggerEvent({"what": decided.reason})
                    return
                if now >= ends_at and decided.act == Act.ADOPT:
                    yield TriggerEvent({"what": "the shift is over"})
                    return
            await asyncio.sleep(BEAT_SECONDS)

    def _observe(self, control: Control) -> Seen | None:
        """None while the lake's object store does not answer: its driver may be well, and only what is seen can be decided on."""
        try:
            return observe(control)
        except Exception as error:
            if (trouble := store_trouble(error)) is None:
                raise
            self.log.warning("nothing can be seen of the driver: %s", trouble)
            return None

    def _tell_of_levels(self, beat: Heartbeat | None) -> None:
        """Say which service levels are broken or mended since the last look, here and to the connections of the declaration."""
        home, now = Home.from_environment(), utc_now()
        try:
            pipeline = load_named(home.pipelines, self.pipeline)
            file = home.lake.breaches(self.pipeline)
            after, new, mended = compare_breaches(Breaches.read(file) or Breaches(), levels_of(home.lake, pipeline, beat, now), now)
        except (Refusal, ValueError) as error:  # a declaration that is being edited, a record of another version: the driver matters more
            self.log.warning("service levels cannot be looked at: %s", error)
            return
        if new or mended:
            after.write(file)
        for level in new:
            self.log.warning("service level not met: %s", level.line)
            tell(pipeline.schedule.notify, f"Weir: {self.pipeline} {level.name} is not met", level.line)
        for level in mended:
            self.log.info("service level met again: %s", level.line)
            tell(pipeline.schedule.notify, f"Weir: {self.pipeline} {level.name} is met again", level.line)

    async def on_kill(self) -> None:
        """Marked failed or cleared: the driver stops at a batch border, or is killed at the deadline. Marked success: it runs on.

        Airflow 3.3 cancels this again about every second while it runs, so the stopping goes on beside it.
        """
        stopping = asyncio.create_task(self._stop_driver())
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        await asyncio.shield(stopping)

    async def _stop_driver(self) -> None:
        task, run = await asyncio.to_thread(self._states)
        if task == "success":
            self.log.info("marked success: the driver is let go and runs on; the next shift adopts it")
            return
        reason = "its task was marked failed in Airflow" if task == "failed" else "its task was cleared in Airflow"
        self.log.info("%s: asking the driver to stop at a batch border", reason)
        seconds = conf.getint("triggerer", "on_kill_timeout", fallback=30) - KILL_MARGIN_SECONDS
        hold = task == "failed" and run == "failed"
        self.log.info(await asyncio.to_thread(stop_or_kill, Home.from_environment(), self.pipeline, reason, seconds, hold))

    def _states(self) -> tuple[str | None, str | None]:
        """Of the task and of its run, as the person left them."""
        states = RuntimeTaskInstance.get_task_states(dag_id=self.of_dag, task_ids=[self.of_task], run_ids=[self.of_run])
        return states.get(self.of_run, {}).get(self.of_task), RuntimeTaskInstance.get_dagrun_state(self.of_dag, self.of_run)


class _Told:
    """What the log has last said of a driver: a line for each new state, and for each new batch at most one in a while."""

    def __init__(self) -> None:
        self.state: tuple[int, str] | None = None
        self.batches: dict[str, int | None] = {}
        self.at = utc_now() - timedelta(seconds=SAY_SECONDS)

    def line(self, beat: Heartbeat | None) -> str | None:
        if beat is None:
            return None
        state, batches = (beat.generation, beat.state), {name: pulse.batch for name, pulse in beat.queries.items()}
        is_new = state != self.state or (batches != self.batches and utc_now() - self.at >= timedelta(seconds=SAY_SECONDS))
        if not is_new:
            return None
        self.state, self.batches, self.at = state, batches, utc_now()
        return describe_beat(beat)


def describe_beat(beat: Heartbeat) -> str:
    """One line: state, and of each query its rate, lag, watermark and last batch."""
    parts = [f"generation {beat.generation} (process {beat.holder.pid}) is {beat.state}"]
    for name, pulse in beat.queries.items():
        watermark = f", watermark {pulse.watermark:%Y-%m-%d %H:%M:%S}" if pulse.watermark else ""
        parts.append(f"{name}: batch {pulse.batch}, {pulse.rows_per_second:,.0f}/s, {pulse.behind:,} behind{watermark}")
    return "; ".join(parts) + (f"; {beat.error}" if beat.error else "")
