"""How much a contribution weighs in the mean of its round: `--weights`.

*By default every point counts equally, so a contribution weighs as many points as it contains. With
`workers`, every contribution weighs the same, however many points it contains.* A worker that
visits few points, because it is slow or has little data, then has as much influence as the others.
The lead still counts points.
"""

BY_POINTS = "points"
BY_WORKERS = "workers"


def weight_in_round(weights: str, points: float) -> float:
    """The weight of a contribution that contains this many points. `weights`: the value of
    `--weights`."""
    return 1.0 if weights == BY_WORKERS else points
