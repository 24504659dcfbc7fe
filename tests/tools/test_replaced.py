"""The picture of jobs whose servers are replaced."""

from typing import Any

from tools.replaced import draw


def test_a_panel_has_the_objective_and_the_servers_that_have_left() -> None:
    rounds = [{"what": "rounds", "at_s": float(at), "objective": 2.0 / (1 + at)} for at in range(4)]
    unknown = {"what": "rounds", "at_s": 4.0, "objective": None}
    gone: dict[str, Any] = {"what": "drained", "at_s": 2.0, "server": 1}
    picture = draw({"bsp": [*rounds, gone, unknown], "k < 1": rounds})
    assert picture.count("<polyline") == 2
    assert picture.count(">s1</text>") == 1
    assert ">k &lt; 1</text>" in picture and ">3 s</text>" in picture
