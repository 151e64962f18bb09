"""Signals ask a run to stop; only a second one insists."""

from __future__ import annotations

import signal
import threading

import pytest

from selfish_rnn.runs.recording import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number: signal.Signals):
    stop = StopRequest()
    with stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_handlers_are_given_back_also_after_an_error():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def fail() -> None:
        with StopRequest():
            assert [signal.getsignal(number) for number in numbers] != before
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert [signal.getsignal(number) for number in numbers] == before


def test_outside_the_main_thread_nothing_is_handled_and_nothing_fails():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def enter() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
