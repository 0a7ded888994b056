from __future__ import annotations

from hf_efficient.recording.stop import StopRequest


def test_who_asks_again_half_a_minute_later_asked_in_vain():
    request = StopRequest()
    assert not request.asked
    assert [request.ask(now) for now in (1000.0, 1000.1, 1029.9, 1030.0)] == [True, True, True, False]
    assert request.asked
