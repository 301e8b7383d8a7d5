"""Named points at which a test can make a process die, or be slow. They do nothing unless WEIR_FAULT is set: `phase:batch:action`."""

import os
import signal
import time

SLOW_SECONDS = 35


def fault_point(phase: str, batch: int) -> None:
    """Die here if WEIR_FAULT names this phase and batch: kill9, raise, hang, oom or enospc; or be slow."""
    if not (wanted := os.environ.get("WEIR_FAULT")):
        return
    at_phase, at_batch, action = wanted.split(":")
    if (at_phase, int(at_batch)) != (phase, batch):
        return
    match action:
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(3_600)
        case "slow":
            time.sleep(SLOW_SECONDS)
        case "oom":
            raise MemoryError(f"fault injected at {phase}, batch {batch}")
        case "enospc":
            raise OSError(28, "No space left on device")
        case _:
            raise RuntimeError(f"fault injected at {phase}, batch {batch}")
