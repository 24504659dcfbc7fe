"""Lets the learning-rate schedulers of torch follow the steps of the job (`core/worker/job_steps.py`).

A scheduler does not tell its optimizer that it was called. So `step()` of torch's scheduler classes
is replaced by a function that asks the attached optimizer how many steps to make. Schedulers of
other optimizers are not affected.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from polyrhythm.core.worker.job_steps import JobSteps, ScheduleCalls


class CountsSteps(Protocol):
    def count_steps(self) -> JobSteps:
        """The steps of the job, as far as this worker knows them now."""

    @property
    def catches_up(self) -> int:
        """In how many consecutive calls the training loop may catch up with the passes of the job;
        0 if it does not step schedulers by passes."""


class Schedules:
    """The schedulers of one optimizer."""

    def __init__(self, *optimizers: Optimizer) -> None:
        """`optimizers`: the attached optimizer, and that of the user's code. A scheduler may have
        either, because they share the parameter groups."""
        _hook()
        for optimizer in optimizers:
            _of[optimizer] = self
        self._job: CountsSteps | None = None
        self._called: WeakKeyDictionary[LRScheduler, ScheduleCalls] = WeakKeyDictionary()
        self._made: WeakKeyDictionary[LRScheduler, None] = WeakKeyDictionary()
        """The schedulers that were made for this optimizer, including those that only other
        schedulers call."""
        self._stepping = False
        self._ended = False
        """Whether a scheduler with a limited number of steps has made its last one."""
        self._say: Callable[[str], None] = lambda message: None

    def begin(self, job: CountsSteps, say: Callable[[str], None]) -> None:
        """Let the schedulers follow this job, whose training begins. Without this call, as with
        several models, each call of a scheduler makes one step. `say` prints a message once for all
        workers."""
        self._job, self._say = job, say

    def made(self, scheduler: LRScheduler) -> None:
        self._made[scheduler] = None

    def call(self, scheduler: LRScheduler, step: Callable[[], None]) -> None:
        """Handle a call of this scheduler's `step`, by the training loop or by another
        scheduler."""
        position = _position(scheduler)
        if self._job is None or self._stepping or position is None:
            step()
            return
        schedule = self._called.setdefault(scheduler, ScheduleCalls())
        count = schedule.steps(position, self._job.count_steps(), self._job.catches_up)
        self._make(scheduler, step, position, count)

    def _make(
        self, scheduler: LRScheduler, step: Callable[[], None], position: int, count: int
    ) -> None:
        total = getattr(scheduler, "total_steps", None)
        if isinstance(total, int) and position + count >= total:
            # Batches at the end of a worker's points are smaller, so a job may have a few steps more
            # than the user has computed. OneCycleLR would leave its lowest rate, and raise an error.
            if position + count > total and not self._ended:
                self._ended = True
                self._say(
                    f"{type(scheduler).__name__} has made all of its total_steps={total:,} steps, and"
                    " the job goes on: the learning rate keeps its last value"
                )
            count = max(0, total - 1 - position)
        self._stepping = True
        try:
            for _ in range(count):
                step()
        finally:
            self._stepping = False

    @property
    def unknown(self) -> bool:
        """Whether the learning rate is not known yet: the job had made steps before this worker
        began, and the loop has not called the schedulers often enough to make up for them."""
        if self._job is None or not self._made:
            return False
        job = self._job.count_steps()
        if job.joined < 1:
            return False
        if self._called:
            return any(schedule.waits(job) for schedule in self._called.values())
        restored = job.resumed and any(_position(each) for each in self._made)
        return job.own <= 1 and not restored

    def finish(self) -> None:
        """At the end of the job, let the schedulers that follow it make their last steps, so that
        they end at the same rate on all workers."""
        if self._job is None:
            return
        steps = self._job.count_steps()
        for scheduler, schedule in list(self._called.items()):
            position = _position(scheduler)
            if schedule.follows and position is not None:
                count = schedule.behind(position, steps.told)
                self._make(scheduler, scheduler.step, position, count)


_of: WeakKeyDictionary[Optimizer, Schedules] = WeakKeyDictionary()


def _position(scheduler: Any) -> int | None:
    """How many steps the scheduler has made; None if that is not known."""
    while not hasattr(scheduler, "last_epoch"):
        # a chain of schedulers, which does not count steps itself
        if not (chained := getattr(scheduler, "_schedulers", None)):
            return None
        scheduler = chained[0]
    return scheduler.last_epoch if isinstance(scheduler.last_epoch, int) else None


def _classes(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _classes(each)


def _hook() -> None:
    for kind in _classes(LRScheduler):
        own = vars(kind).get("step")
        hooked = own is None or hasattr(own, "_follows_job")
        if not hooked and not issubclass(kind, ReduceLROnPlateau):
            kind.step = _following(own)


def _following(step: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(step)
    def following(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        optimizer = getattr(self, "optimizer", None)
        schedules = None if optimizer is None else _of.get(optimizer)
        if schedules is None or args or kwargs:
            step(self, *args, **kwargs)
        elif getattr(self, "_is_initial", False) or _position(self) == -1:
            schedules.made(self)
            step(self)
        else:
            schedules.call(self, functools.partial(step, self))

    following._follows_job = True  # type: ignore[attr-defined]
    return following
