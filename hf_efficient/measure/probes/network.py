"""What goes through the network interfaces of this machine."""

from __future__ import annotations

import psutil

from hf_efficient.measure.probes.probe import Rates

__all__ = ["NetworkProbe"]


class NetworkProbe:
    """Rates over all interfaces but those that lead back here.

        network_received_bytes_per_second, network_sent_bytes_per_second

    InfiniBand that is not used as an IP network is not among them.
    """

    name = "load of the network"

    def __init__(self) -> None:
        self._rates = Rates()

    def read(self, at: float) -> dict[str, float]:
        """See above."""
        interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
        outside = [counters for name, counters in interfaces.items() if not name.startswith("lo")]
        rates = self._rates.of(
            at,
            {
                "network_received_bytes_per_second": sum(one.bytes_recv for one in outside),
                "network_sent_bytes_per_second": sum(one.bytes_sent for one in outside),
            },
        )
        return {name: round(rate, 1) for name, rate in rates.items()}
