from __future__ import annotations

from hf_efficient.recording.run_files import DONE, ending_of
from hf_efficient.recording.stop import EndedBySignal, RunStopped


def test_endings():
    assert ending_of(None) == DONE
    assert ending_of(ValueError("first\nsecond")) == ("error", "ValueError: first")
    assert ending_of(KeyboardInterrupt()) == ("error", "KeyboardInterrupt")
    assert ending_of(EndedBySignal(15)) == ("error", "EndedBySignal: SIGTERM")
    assert ending_of(RunStopped(7, 60)) == ("stopped", "after step 7 of 60; checkpoint-7 is saved")
