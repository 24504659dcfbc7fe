"""Takes parts out of polyrhythm in all processes of a run (Aware, Fig. 7). Python imports a module of
this name when it starts, if its folder is on the path.

`probes`: no link is measured, and there are no probe slices. The lead takes all hosts to be equally
fast. `requests`: the lead never considers another assignment of slices.
"""

import os

_WITHOUT = os.environ.get("POLYRHYTHM_WITHOUT", "").split()
_RATE = 27.5e6

if "probes" in _WITHOUT:
    from polyrhythm.core.lead.servers import placement
    from polyrhythm.core.names import server_name
    from polyrhythm.core.placement import division
    from polyrhythm.io.stream import StreamLink

    def _same_rates(self: placement.Placement) -> bool:
        for server in self._routing.staying:
            host = self._network.host_of(server_name(server))
            self._state.throughputs[host] = placement.SteadyRate.begin(_RATE)
        return True

    division.PROBES = 0  # type: ignore[misc]
    StreamLink.measure_with = lambda self, measure: None  # type: ignore[method-assign]
    placement.Placement._measure = _same_rates  # type: ignore[method-assign]

if "requests" in _WITHOUT:
    from polyrhythm.core.lead.servers.placement import Placement

    Placement.on_folded = lambda self, done, now_ns: False  # type: ignore[method-assign]
