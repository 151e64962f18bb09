"""The command line, in which the second rank is killed inside the second epoch, the first time it is started."""

from __future__ import annotations

import os
import signal
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

main()
