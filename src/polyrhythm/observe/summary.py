"""The result of a run: a pure fold over its journal."""

from collections.abc import Iterable
from typing import Any


def summarise(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What `--json` prints, as far as the journal knows it."""
    opened_s = ended_s = None
    last: dict[str, Any] = {}
    objective = None
    contributions = points = 0
    names: dict[str, str] = {}
    links: set[str] = set()
    accuracies: dict[str, float] = {}
    ended: dict[str, Any] = {}
    for line in lines:
        match line["what"]:
            case "joined":
                names[str(line["worker"])] = line["name"]
            case "linked":
                links.add(line["link"])
            case "rounds":
                opened_s = line["at_s"] if opened_s is None else opened_s
                ended_s = line["at_s"]
                last = line
                contributions += line["contributions"]
                points += line["points"]
                objective = line["objective"] if line["objective"] is not None else objective
            case "reported":
                if line["metrics"].get("accuracy") is not None:
                    accuracies[line["name"]] = line["metrics"]["accuracy"]
            case "ended":
                ended = line
    seconds = ended_s - opened_s if opened_s is not None and ended_s is not None else 0.0
    workers = {
        names.get(str(worker), f"w{worker}"): {
            "contributions": totals["contributions"],
            "points": totals["points"],
            "compute_s": totals["compute_ns"] / 1e9,
            "wait_s": totals["wait_ns"] / 1e9,
            "transfer_s": totals["transfer_ns"] / 1e9,
        }
        for worker, totals in last.get("workers", {}).items()
    }
    return {
        "link": "+".join(sorted(links)) or "none",
        "rounds": ended.get("rounds", last.get("round", 0)),
        "contributions": contributions,
        "points": points,
        "passes": last.get("passes", 0),
        "objective": objective,
        "accuracy": sum(accuracies.values()) / len(accuracies) if accuracies else None,
        "seconds": round(seconds, 6),
        "points_per_s": round(points / seconds, 3) if seconds else 0.0,
        "per_worker": workers,
        "folds": {f"s{server}": count for server, count in ended.get("folds", {}).items()},
        "ended": ended.get("reason"),
    }
