from types import SimpleNamespace

import overhead_blocks
import torch
from overhead_blocks import StepClock, run_block
from overhead_cases import CASES


class Readings:
    """Clocks that are set by hand, in nanoseconds."""

    def __init__(self, monkeypatch):
        self.wall = self.process = self.thread = 0
        monkeypatch.setattr(overhead_blocks.time, "perf_counter_ns", lambda: self.wall)
        monkeypatch.setattr(overhead_blocks.time, "process_time_ns", lambda: self.process)
        monkeypatch.setattr(overhead_blocks.time, "thread_time_ns", lambda: self.thread)


def test_the_clock_leaves_out_the_first_steps_and_reads_tens(monkeypatch):
    readings, clock = Readings(monkeypatch), StepClock(skip=2, steps=20, device="cpu")
    for step in range(1, 23):
        # 1 ms for a skipped step, then ten of 3 us and ten of 5 us; a quarter of it on another thread
        took = 1_000_000 if step <= 2 else 3_000 if step <= 12 else 5_000
        readings.wall += took
        readings.process += took
        readings.thread += took * 3 // 4
        clock.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert clock.tens_us() == [3.0, 5.0]
    assert clock.cpu_us() == (4.0, 3.0)
    # all readings: 2 ms and 80 us; from the end of step 1 to the end of step 22 it was 1 ms and 80 us
    assert clock.outside_ns(started_ns=-500, ended_ns=2_080_000 + 700) == 1_000_000 + 500 + 700


def test_a_block_trains_a_copy_and_leaves_no_thread():
    case = CASES["tiny"]
    model = case.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run_block(case, "plain", model, skip=1, steps=10)  # tqdm starts its monitor with the first bar of the process
    block = run_block(case, "efficient", model, skip=1, steps=10)
    assert (block.arm, block.steps, block.threads_left) == ("efficient", 10, ())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
