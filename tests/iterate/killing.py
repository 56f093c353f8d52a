"""Runs `sctom.rounds` in forks of one process, each killed with -9 at its own moment.

python -m tests.iterate.killing CONFIG RUN_DIR [STAGE WRITE] ...

Each fork goes on with the run and kills itself when stage STAGE flushes a file to the disk for the
WRITE-th time, before that file has its name; write 0 is before the stage begins to work. The last
fork finishes the run. Forks share the import of torch, which takes longer than the stages.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sctom.iterate import run as rounds_run
from sctom.iterate.manifest import Manifest, Stage
from sctom.rounds import main


class KillingManifest(Manifest):
    """Kills this process in the middle of a stage."""

    stage = ""
    write = 0

    def do(self, stage: Stage) -> bool:
        if stage.name != self.stage:
            return super().do(stage)

        def work(folder: Path) -> None:
            kill_at_write(self.write)
            stage.run(folder)
            raise AssertionError(f"stage {stage.name} ended before write {self.write}")

        return super().do(Stage(stage.name, stage.config, stage.inputs, stage.outputs, work))


def kill_at_write(write: int) -> None:
    flush = os.fsync
    left = write

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)

    if not write:
        os.kill(os.getpid(), signal.SIGKILL)
    os.fsync = fsync


def fork(config: str, run_dir: str) -> int:
    """One process of the run; how it ended."""
    child = os.fork()
    if child == 0:
        main(["--config", config, "--run_dir", run_dir, "--resume", "auto"])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    config, run_dir, *moments = sys.argv[1:]
    del sys.argv[1:]
    rounds_run.Manifest = KillingManifest
    for place in range(0, len(moments), 2):
        KillingManifest.stage, KillingManifest.write = moments[place], int(moments[place + 1])
        status = fork(config, run_dir)
        assert status == -signal.SIGKILL, f"{moments[place : place + 2]}: {status}"
    KillingManifest.stage = ""
    assert fork(config, run_dir) == 0
