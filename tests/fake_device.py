"""A device that works off what is queued on it, on a host clock that is set by hand."""


class Device:
    """Works without a pause while there is work.

    Attributes:
        host: seconds of the host's clock.
        done_at: when all that is queued will be done.
    """

    def __init__(self):
        self.host = 0.0
        self.done_at = 0.0
        self.stuck = False
        self.events = []

    def queue(self, seconds):
        """The host queues work, and goes on at once."""
        self.done_at = max(self.done_at, self.host) + seconds

    def event(self):
        self.events.append(Event(self))
        return self.events[-1]


class Event:
    """As ``torch.cuda.Event`` is, as far as it is used."""

    def __init__(self, device):
        self.device, self.at = device, None

    def record(self):
        self.at = max(self.device.host, self.device.done_at)

    def query(self):
        return not self.device.stuck and self.at is not None and self.device.host >= self.at

    def elapsed_time(self, end):
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end.at - self.at) * 1e3
