"""The event log: hand-written events and what they come to, and what the log appends, tells a device, and shows."""

from types import SimpleNamespace

import pytest
from hand_clock import SECOND

from hf_efficient.recording.events import EventLog, Fold, Span, mark_phases
from hf_efficient.recording.guard import guard
from hf_efficient.recording.ranks import watch_engine_steps

STEP = "the step"


def enter(at, name, token, opaque=False):
    return ("enter", at, name, (token, opaque))


def leave(at, token):
    return ("leave", at, token, None)


def mark(at, phase):
    return ("mark", at, phase, None)


LOOP = ("loop", 100, True, None)


def cut(at, step=STEP):
    return ("cut", at, step, None)


def fold(*events, start=100):
    return [
        (one.start_ns, one.end_ns - one.start_ns, one.phase_ns) if isinstance(one, Span) else one
        for one in Fold(start).take(events)
    ]


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ([mark(110, "data_wait"), mark(130, None), mark(135, "forward"), cut(180)], {"data_wait": 20, "forward": 45}),
        (  # an inner phase is not counted for the outer one
            [
                *(enter(100, "forward", 1), enter(103, "communication", 2), enter(110, "forward", 3)),
                *(leave(111, 3), leave(111, 2), leave(131, 1), cut(131)),
            ],
            {"forward": 24, "communication": 7},
        ),
        (  # leaving the outer one closes what an exception left open
            [enter(100, "forward", 1), enter(102, "evaluation", 2, True), leave(105, 1), cut(109)],
            {"forward": 2, "evaluation": 3},
        ),
        ([enter(100, "evaluation", 1, True), leave(110, 1), leave(115, 1), cut(120)], {"evaluation": 10}),
        ([enter(100, "forward", 1), cut(150)], {"forward": 50}),  # a cut closes what is open
        (  # what is entered lies inside what is marked, and a mark meanwhile tells what goes on around it
            [mark(100, "forward"), enter(101, "compilation", 1), mark(103, "backward"), leave(107, 1), cut(115)],
            {"forward": 1, "compilation": 6, "backward": 8},
        ),
        ([mark(100, "forward"), mark(90, "backward"), cut(105)], {"forward": 0, "backward": 5}),  # of another thread
    ],
)
def test_the_phases_of_a_step(events, phases):
    assert fold(LOOP, *events) == [(100, events[-1][1] - 100, phases)]


def test_steps_tile_the_loop_and_nothing_goes_on_after_a_cut():
    events = [mark(100, "forward"), cut(110), mark(115, "forward"), cut(120), cut(130, None)]
    events.append(("loop", 140, False, None))
    assert fold(LOOP, mark(100, "forward"), cut(130, None)) == [(100, 30, {"forward": 30})]  # never done
    assert fold(LOOP, *events) == [(100, 10, {"forward": 10}), (110, 10, {"forward": 5})]


def test_waits_inside_an_opaque_phase_are_counted_beside_it_and_once():
    events = [enter(100, "evaluation", 1, True), enter(110, "communication", 2), enter(112, "communication", 3)]
    events += [leave(114, 3), leave(120, 2), enter(125, "communication", 4), leave(130, 1), cut(140)]
    (step,) = Fold(100).take([LOOP, *events])
    assert (step.phase_ns, step.waits_ns, step.step) == ({"evaluation": 30}, {"evaluation": 15}, STEP)


class Watch:
    """Of a device: what it is told."""

    def __init__(self):
        self.told = []

    def enter(self, name):
        self.told.append(f"+{name}")

    def leave(self, name):
        self.told.append(f"-{name}")


class Ranges(list):
    def __init__(self):
        self.open = []

    def range_push(self, name):
        self.open.append(name)
        self.append(name)

    def range_pop(self):
        self.append(f"/{self.open.pop()}")


@pytest.fixture
def log(hand):
    return EventLog(hand)


@pytest.fixture
def ranges():
    made = Ranges()
    mark_phases(made)
    yield made
    mark_phases(None)


def seconds(log, start_ns=0):
    """Of the step that is cut now."""
    log.cut(STEP)
    (step,) = [one for one in Fold(start_ns).take(log.swap()) if isinstance(one, Span) and one.step]
    return {name: ns / SECOND for name, ns in step.phase_ns.items()}


def test_a_mark_returns_the_one_before_by_which_that_goes_on(log, hand):
    assert log.mark("forward") is None  # outside the loop
    log.loop(True)
    outermost = log.mark("optimizer")
    hand.wait(1)
    outer = log.mark("forward")
    inner = log.mark("host_to_device")
    hand.wait(2)
    log.mark(inner)
    hand.wait(4)
    log.mark(outer)
    hand.wait(8)
    log.mark(outermost)
    hand.wait(16)
    assert seconds(log) == {"optimizer": 9.0, "forward": 4.0, "host_to_device": 2.0}
    assert log.mark("forward") is None  # of the next step


def test_inside_an_opaque_phase_nothing_is_appended_but_waits(log, hand):
    log.loop(True)
    log.mark("bookkeeping")
    with log.phase("evaluation", opaque=True):
        before = len(log.swap())
        for _ in range(1000):
            assert log.mark("forward") == "bookkeeping"
            with log.phase("logging", opaque=True):
                hand.wait(1)
        assert log.swap() == []
        with log.phase("communication"):
            pass
        assert [kind for kind, *_ in log.swap()] == ["enter", "leave"]
    assert before > 0
    assert log.mark("forward") == "bookkeeping"


def test_the_device_is_told_marks_once_each_and_what_is_of_the_host_is_not(log):
    watch = Watch()
    log.loop(True, watch)
    for phase in ("data_wait", "bookkeeping", None, "forward", None, "backward"):
        log.mark(phase)
    with log.phase("evaluation", opaque=True):
        log.mark("forward")
    with log.phase("communication"):
        pass
    for phase in ("device_wait", "optimizer", "optimizer"):
        log.mark(phase)
    step = ["+data_wait", "-data_wait", "+forward", "-forward", "+backward", "+evaluation", "-evaluation", "-backward"]
    assert watch.told == [*step, "+optimizer"]
    log.cut(STEP)
    log.mark("optimizer")
    assert watch.told[-1] == "+optimizer"  # of the next step
    log.loop(False)
    log.mark("forward")
    assert len(watch.told) == len(step) + 2


def test_a_wait_takes_the_place_of_the_phase_around_it_on_the_device(log):
    watch = Watch()
    log.loop(True, watch)
    log.mark("forward")
    log.leave(log.enter("communication", instead_of="forward"), "communication", "forward")
    log.mark("backward")
    token = log.enter("communication", instead_of="backward")
    log.leave(token, "communication")
    log.mark(None)
    forward = ["+forward", "-forward", "+communication", "-communication", "+forward", "-forward"]
    assert watch.told == [*forward, "+backward", "-backward", "+communication", "-communication", "-backward"]


def test_what_is_marked_is_a_range_around_those_that_were_entered(hand, ranges):
    log = EventLog(hand)
    log.loop(True)
    log.mark("forward")
    inside = log.enter("compilation")
    log.enter("host_to_device")  # left open by an exception
    log.mark("backward")  # its range would not lie around the one that is open
    log.leave(inside)
    log.mark(None)
    with log.phase("evaluation", opaque=True):
        log.mark("forward")
    log.mark("forward")
    log.enter("optimizer")
    log.cut(STEP)
    assert ranges.open == []
    assert ranges == [
        *("forward", "compilation", "host_to_device", "/host_to_device", "/compilation", "/forward"),
        *("backward", "/backward", "evaluation", "/evaluation", "forward", "optimizer", "/optimizer", "/forward"),
    ]


class Counter:
    broken = False
    counted = 0

    @guard("Nothing is counted any more")
    def count(self, by, *, times=1):
        self.counted += by * times
        return self.counted

    @guard("Nothing is counted any more")
    def leave(self):
        raise KeyboardInterrupt


def test_the_guard_lets_through_what_is_no_fault_and_tells_of_one_once(caplog):
    counter = Counter()
    assert counter.count(2, times=3) == 6
    with pytest.raises(KeyboardInterrupt):
        counter.leave()
    assert not counter.broken
    assert [counter.count("apples"), counter.count("pears"), counter.count(1)] == [None] * 3
    (record,) = caplog.records
    assert record.getMessage() == "Nothing is counted any more, because of a fault; training continues."
    assert (record.name, record.exc_info[0]) == (__name__, TypeError)


def engine_of(step):
    return SimpleNamespace(deepspeed_engine_wrapped=SimpleNamespace(engine=SimpleNamespace(step=step)))


def test_the_step_of_an_engine_inside_a_backward_is_the_optimizers_time(log, hand):
    accelerator, waits = engine_of(lambda: hand.wait(4)), []
    for _ in range(2):  # of a second train(): once is enough
        watch_engine_steps(accelerator, log, lambda: waits.append(log.leave(token)))
    log.loop(True)
    log.mark("backward")
    hand.wait(1)
    token = log.enter("communication", instead_of="backward")
    hand.wait(2)
    accelerator.deepspeed_engine_wrapped.engine.step()
    hand.wait(8)
    assert seconds(log) == {"backward": 9.0, "communication": 2.0, "optimizer": 4.0}
    assert len(waits) == 1
