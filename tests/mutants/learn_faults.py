"""Faults of the worker's side: what is computed, on which points, and with which weight it counts."""

from tests.mutants.mutant import Mutant, mutant

LEARN: tuple[Mutant, ...] = (
    # -- the probe sample ----------------------------------------------------------------------
    mutant(
        "probe-weighs-batches-alike",
        "A last, smaller batch of the probe sample counts as a full one.",
        "learn:Probe.evaluate",
        "len(indices)",
        "_AT_ONCE",
    ),
    mutant(
        "probe-shares-are-one",
        "Every worker evaluates the same part of the probe sample.",
        "learn:Probe.evaluate",
        "self._sample[part::parts]",
        "self._sample[: len(self._sample) // parts]",
    ),
    mutant(
        "probe-is-reported-again",
        "One evaluation of the probe sample is reported with every later contribution.",
        "learn:Probe.result",
        "result, self._result = self._result, NOT_PROBED",
        "result = self._result",
    ),
    mutant(
        "probe-sample-of-ones-own",
        "Every worker draws another probe sample.",
        "learn:Probe.__init__",
        "np.random.default_rng((seed, 3))",
        "np.random.default_rng()",
    ),
    # -- points --------------------------------------------------------------------------------
    mutant(
        "same-order-in-every-pass",
        "The points of a chunk are visited in the same order in every pass.",
        "learn:Points._shuffled",
        "(self._seed, passes, 2, chunk.chunk)",
        "(self._seed, 2, chunk.chunk)",
    ),
    mutant(
        "points-lost-by-an-eviction",
        "A worker that comes back skips points that it visited before the eviction, uncounted.",
        "learn:Points.take",
        "self._been.clear()",
        "pass",
    ),
    mutant(
        "points-visited-twice-by-a-lease",
        "With every new lease a worker visits again what is on its way to the servers.",
        "learn:Points.take",
        "max(self._been.get(number, (0, 0)), (chunk.passes, chunk.cursor))",
        "(chunk.passes, chunk.cursor)",
    ),
    mutant(
        "abandoned-points-lost-by-a-lease",
        "Points that were given back are skipped if a new lease comes before they are visited.",
        "learn:Points.put_back",
        "self._been[number] = at",
        "pass",
    ),
    mutant(
        "abandoned-points-are-counted",
        "The progress over points that were given back is reported.",
        "learn:_Visits.take_back",
        "self.points, self._progress = self._before",
        "self.points = self._before[0]",
    ),
    mutant(
        "rest-of-the-points-is-forgotten",
        "What was visited since the last contribution is not sent when the points end.",
        "learn:Worker.batches",
        "if self._visits.pending:\n"
        "    self._exchange.contribute_rest()\n"
        "else:\n"
        '    self._node.abstain("it has visited all of its points", lease.number)\n'
        "    self._exchange.resume_pace()",
        'self._node.abstain("it has visited all of its points", lease.number)\n'
        "self._exchange.resume_pace()",
    ),
    mutant(
        "batches-overshoot",
        "A round of a number of points takes a whole batch at its end, and so too many points.",
        "learn:Worker._count_next",
        "max(1, min(batch_size, int(self._exchange.missing())))",
        "batch_size",
    ),
    # -- steps and contributions ---------------------------------------------------------------
    mutant(
        "abandoned-loss-is-counted",
        "The objective of a micro-batch that was given back is in the mean.",
        "learn:Exchange._leave_out",
        "if objective:\n    self._objective.pop()",
        "pass",
    ),
    mutant(
        "micro-batches-weigh-alike",
        "The gradient of a micro-batch is gathered without its number of points.",
        "learn:Exchange._end_micro_batch",
        "points or 1.0",
        "1.0",
    ),
    mutant(
        "objective-since-the-beginning",
        "A contribution reports the mean objective since the beginning of the job.",
        "learn:Exchange._contribute",
        "self._objective.clear()",
        "pass",
    ),
    mutant(
        "changes-since-the-beginning",
        "With local steps a contribution is the change since the first parameters, not the last.",
        "learn:Exchange._contribute",
        "self._flat.remember(parameters=self._local)",
        "self._flat.remember(parameters=False)",
    ),
    mutant(
        "one-step-more-than-predicted",
        "psp takes one step more than the lead asked for.",
        "learn:Exchange._due",
        "self._step >= node.terms.steps",
        "self._step > node.terms.steps",
    ),
    mutant(
        "gradients-are-not-consumed",
        "Gradients of a step are still there in the next, for whoever does not call zero_grad.",
        "learn:Exchange._drop_gradients",
        "parameter.grad = None",
        "pass",
    ),
    mutant(
        "rate-of-the-defaults",
        "Contributions travel with the rate that the optimizer was made with, whatever a scheduler"
        " sets.",
        "learn:Exchange._contribute",
        "float(group['lr'])",
        "float(self.defaults['lr'])",
    ),
    mutant(
        "frozen-parameters-are-trained",
        "A frozen parameter is given to the servers' optimizer.",
        "learn:describe",
        "group if parameter.requires_grad else BUFFERS",
        "group",
    ),
    # -- measures ------------------------------------------------------------------------------
    mutant(
        "eval-mode-stays",
        "After the accuracy was measured the model trains in eval mode.",
        "learn:accuracy",
        "model.train(training)",
        "training",
    ),
    mutant(
        "examination-counts-as-computing",
        "The time of an examination is booked as computing.",
        "learn:Worker.examine",
        "self._exchange.pass_over(now_ns - began_ns)",
        "now_ns",
    ),
    mutant(
        "examinations-without-a-share",
        "A long examination is repeated without a pause in proportion.",
        "learn:Examinations.done",
        "max(self._least_ns, self._share * (now_ns - began_ns))",
        "self._least_ns",
    ),
    mutant(
        "first-micro-batch-is-measured",
        "The first micro-batch, which takes many times as long as any other, sets the pace.",
        "learn:MicroBatch.measured",
        "not self._warm",
        "False",
    ),
    mutant(
        "remainder-of-a-stall-is-forgotten",
        "A staged pause every so many points never comes if a step visits fewer than that.",
        "learn:Stage.pad_ns",
        "(visited + points) // self.stall_points - visited // self.stall_points",
        "points // self.stall_points",
    ),
    # -- data ----------------------------------------------------------------------------------
    mutant(
        "trains-on-the-test-set",
        "The job digits trains on the images that it is tested on.",
        "learn:load",
        "Images(images[:_TRAIN], labels[:_TRAIN], images[_TRAIN:], labels[_TRAIN:])",
        "Images(images, labels, images[_TRAIN:], labels[_TRAIN:])",
    ),
    mutant(
        "download-is-not-verified",
        "A downloaded file is put in place whatever its checksum is.",
        "learn:_get",
        "sha256 != file.sha256",
        "False",
    ),
)
