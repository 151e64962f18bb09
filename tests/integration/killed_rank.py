"""The command line, in which the second rank is killed inside the second epoch, the first time it is started.

A rank that leaves by itself says how many threads of the process group are left: one that outlives the interpreter can
abort the process.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any

from selfish_rnn.cli import main
from selfish_rnn.training.trainer import Trainer

UPDATE = 14

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    update = Trainer._update

    def killed(self: Trainer, *arguments: Any, **options: Any) -> float:
        if self.state.step == UPDATE:
            os.kill(os.getpid(), signal.SIGKILL)
        return update(self, *arguments, **options)

    Trainer._update = killed  # type: ignore[method-assign]


@atexit.register
def say_threads() -> None:
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").glob("*")]
    print(f"rank {os.environ['RANK']} leaves with {sum('gloo' in name for name in names)} threads", file=sys.stderr)


main()
