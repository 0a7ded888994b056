import pytest
from hand_clock import Hand, timeline_of


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def timeline(hand):
    """Of a process that started three seconds before."""
    made = timeline_of(hand, lived_seconds=3)
    yield made
    if made.files is not None:
        made.files.stop()  # threads that go on would write into other tests
