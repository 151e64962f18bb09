"""Runtime: a model as a program that runs one step at a time, in Python, C and C++."""

from selfish_rnn.runtime.calibration import Calibration, calibrate
from selfish_rnn.runtime.cells import register_step
from selfish_rnn.runtime.streaming import Stream, load_stream, stream
from selfish_rnn.runtime.tracing import UntranslatableError

__all__ = ["Calibration", "Stream", "UntranslatableError", "calibrate", "load_stream", "register_step", "stream"]
