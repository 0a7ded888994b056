"""A machine that is gone is noticed; no store and no network is needed to see that."""

from __future__ import annotations

import pytest

from hf_efficient.launch.restart import SILENT_SECONDS, PeerWatch, Silence, watch_peers


class Shelf(dict):
    """What ``TCPStore`` does, without a server."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key, default=None):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


class Hand:
    def __init__(self):
        self.at = 100.0

    def __call__(self):
        return self.at


def test_machines_that_count_are_heard():
    shelf, hand = Shelf(), Hand()
    one, two = (PeerWatch(shelf, node, 2, hand) for node in (0, 1))
    for _ in range(5):
        hand.at += SILENT_SECONDS - 1
        two.beat()
        one.beat()


def test_a_machine_that_no_longer_counts_is_named(monkeypatch):
    shelf, hand = Shelf(), Hand()
    monkeypatch.setattr("socket.gethostname", lambda: "beta")
    one, two = (PeerWatch(shelf, node, 2, hand) for node in (0, 1))
    two.beat()
    one.beat()
    hand.at += SILENT_SECONDS
    one.beat()  # just long enough
    hand.at += 1
    with pytest.raises(Silence, match=r"machine 1 \(beta\) has not been heard of for 21 s"):
        one.beat()


def test_the_store_stays_until_all_others_have_ended():
    shelf, looks = Shelf(), []

    def now():
        looks.append(1)
        if len(looks) == 4:
            two.done()
        return 0.1 * len(looks)

    two = PeerWatch(shelf, 1, 3)
    one = PeerWatch(shelf, 0, 3, now)  # the third never began
    one.done()
    one.see_off(100.0, look_every=0.0)
    assert len(looks) == 4
    PeerWatch(shelf, 2, 3)
    one.see_off(0.5, look_every=0.0)  # but not for ever
    assert len(looks) > 5


def test_a_machine_that_has_not_begun_or_is_done_is_not_missed():
    shelf, hand = Shelf(), Hand()
    one, two = (PeerWatch(shelf, node, 2, hand) for node in (0, 1))
    one.beat()
    hand.at += 1000
    two.beat()
    one.beat()
    two.done()
    two.beat()  # one under way when it ended
    hand.at += 1000
    one.beat()


def test_a_machine_that_was_met_and_never_counted_is_missed():
    """It is cut off within three seconds of its start, after which the first count comes."""
    shelf, hand, met = Shelf(), Hand(), []
    PeerWatch(shelf, 1, 2, hand)
    one = PeerWatch(shelf, 0, 2, hand, met=lambda: bool(met))
    hand.at += 1000
    one.beat()
    met.append(True)
    one.beat()
    hand.at += SILENT_SECONDS
    one.beat()
    hand.at += 1
    with pytest.raises(Silence, match=r"machine 1 .* has not been heard of for 21 s"):
        one.beat()


def test_what_an_earlier_start_has_counted_is_not_taken_for_silence():
    shelf, hand = Shelf(), Hand()
    PeerWatch(shelf, 1, 2, hand).beat()
    one = PeerWatch(shelf, 0, 2, hand)  # both were started again, and machine 1 still imports
    hand.at += 1000
    one.beat()
    two = PeerWatch(shelf, 1, 2, hand)
    one.beat()
    hand.at += SILENT_SECONDS + 1
    with pytest.raises(Silence, match="machine 1"):
        one.beat()
    two.beat()
    one.beat()


def test_a_store_that_fails_is_machine_0():
    class Broken(Shelf):
        works = True

        def check(self, keys):
            if not self.works:
                raise RuntimeError("connection reset")
            return super().check(keys)

    shelf = Broken()
    watch = PeerWatch(shelf, 1, 2, Hand())
    shelf.works = False
    with pytest.raises(Silence, match=r"machine 0 does not answer \(RuntimeError, 0 s\)"):
        watch.beat()


@pytest.mark.parametrize(
    "environment",
    [{}, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}],
)
def test_nobody_is_watched_on_one_machine_or_by_a_second_process(environment):
    def never(why):
        raise AssertionError(why)

    watch_peers(environment, never)()
