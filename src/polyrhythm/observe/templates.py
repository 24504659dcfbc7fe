"""The sentence of every reason: the only place that turns the codes of `wire/messages/reasons.py`
into words.

A template names the fields of its reason. Two format specifications are added to the usual ones:
`{n:round}` is a number with a noun (`1 round`, `2 rounds`), and `{held:is|are}` is the verb that
fits a list of names. A field `cause` holds the code of another reason, whose sentence is made from
the same fields. `reasons.py` fills the templates.
"""

SENTENCES = {
    # sentences about what a worker or a server waits for
    "none": "waiting for nothing",
    "joining": "waiting for the lead to admit this worker",
    "rejoining": "this worker joins again: {cause}",
    "placing": "waiting for the servers to allocate the model's slices",
    "waits": "waiting for the fold of round {round}",
    "gate": "waiting for the slowest worker to catch up",
    "reading": "waiting for the servers' answer",
    "resting": "this worker has visited all of its points and waits for the others",
    "computing": "the worker is computing on version {round}",
    "parted": "the link to s{server} is lost; waiting for the lead to say which servers hold its slices",
    "parting": "this worker was told to leave, and finishes its work",
    "settling": "this worker leaves when {unacknowledged:contribution has|contributions have} been"
    " acknowledged",
    "unacknowledged": "waiting for {servers} to acknowledge the last two contributions",
    "withheld": "a checkpoint is being made; this worker withholds its contribution until the slices"
    " are copied",
    "lead-suspect": "the lead is silent; this process waits for it as long as --lead-timeout says",
    "order-missing": "round {round} waits for the lead to order the fold",
    "rerouting": "the slices have new primaries; waiting for {servers} to follow the new routes",
    "copying": "waiting for {servers} to copy what was folded",
    # sentences about what the lead waits for
    "seeding": "waiting for {workers} to send the initial parameters",
    "no-workers": "no worker is in the job: it waits for others to join",
    "gathering": "waiting for {absent:more worker} to join and to attach a model",
    "waiting": "the round waits for the other workers",
    "round": "round {round} waits for {missing}",
    "folding": "the servers fold round {round}",
    "failover": "s{lost} is lost; waiting for {servers} to follow the new routes",
    "moving": "slices move to other servers; waiting for {servers} to follow the new routes",
    "resending": "waiting for {workers} to send to {servers} again what a lost server had received",
    "window": "{held} {held:waits|wait}: {servers} {servers:has|have} not acknowledged the last two"
    " contributions",
    "unreported": "{servers} {servers:has|have} not reported what {held} contributed",
    "link-silent": "{workers} and {servers} cannot reach each other: nothing comes over their"
    " link, although both can reach the lead",
    "links-cut": "no worker can continue: {workers} and {servers} cannot reach each other,"
    " although they can reach the lead",
    "servers-apart": "{servers} cannot reach each other, although both can reach the lead, and"
    " each has"
    " the only copy of a slice",
    "sharing": "waiting for {name} to send the parameters of round {round} to the servers",
    "ending": "the goal is reached; waiting for {workers} to finish",
    "collecting": "the job is over; the model is being saved, and {servers} still"
    " {servers:sends|send} parameters",
    "saving": "the job is over, and its model is being written to the disk",
    "stale": "{held} {held:is|are up to} {ahead:step} ahead of {missing} (limit {bound})",
    "restarting": "{held} stopped {bound:step} ahead of the slowest worker; clocks restart when"
    " {missing} {missing:has|have} stopped too",
    # sentences about what a policy has decided
    "opened": "round {round} is open for {members:member}",
    "all-arrived": "every member has contributed to round {round} or abstained",
    "timer": "the timer fired {after_s:.1f} s after round {round} opened: the round does not wait for"
    " {missing}",
    "abandoned": "round {round} closes {after_s:.3f} s after its interval, without waiting for"
    " {missing}",
    "timer-empty": "the timer fired, but no worker has contributed to round {round} yet",
    "points-visited": "{resting} of {members:worker} have visited all of their points: the steps of"
    " the others are scaled by {share:.2f}",
    "already-in": "the contribution still counts in round {round}",
    "first-members": "no member is left in round {round}: the round ends, and the next one begins"
    " with the workers that have joined",
    "going": "no worker is held back",
    "turn": "the view changes: {members:member} from now on",
    "restart": "all {members:member} have stopped: clocks restart",
    "plan": "there is a barrier every {horizon_ms:.0f} ms; steps of each worker between two barriers:"
    " {plan} ({usage:.0%} of the time computing)",
    "plan-over-cap": "there is a barrier every {horizon_ms:.0f} ms; steps of each worker between two"
    " barriers: {plan} ({usage:.0%} of the time computing); --most-steps {cap} is raised to {raised},"
    " because the fastest worker makes that many steps in one step of the slowest",
    "interval-over": "the interval is over: all workers contribute what they have",
    "on-arrival": "contributions are folded as they arrive",
    "interval-started": "the interval is {interval_ms:.1f} ms now; it approaches the"
    " length with which the search for the best interval begins",
    "interval-measuring": "intervals around {interval_ms:.1f} ms are being measured",
    "interval-chosen": "the interval is {interval_ms:.1f} ms now (before: {before_ms:.1f} ms): the"
    " objective should {fall}",
    "interval-stage-over": "the objective {falls}: intervals around {interval_ms:.1f} ms are"
    " measured now",
    "interval-raised": "the interval is raised to {interval_ms:.1f} ms: a barrier alone takes"
    " {phi_ms:.1f} ms",
    "interval-bounded": "the interval is raised to {interval_ms:.1f} ms: a barrier takes"
    " {phi_ms:.1f} ms, a micro-batch up to {micro_ms:.1f} ms",
    "interval-lowered": "the interval is {interval_ms:.1f} ms again: barriers and micro-batches are"
    " shorter than they were",
    "interval-restored": "the interval is {interval_ms:.1f} ms again, as asked: barriers are cheap"
    " enough",
    "interval-blind": "the interval is {interval_ms:.1f} ms while there is no objective by which"
    " to choose it",
    "batch-measuring": "batches of {points:point} are tried",
    "batch-chosen": "batches have {points:point}: the objective fell fastest with them, by {gain:.3g}"
    " per second",
    "batch-blind": "no objective is reported, so batches stay at {points:point}",
    # sentences about points that move between workers, or why none move
    "balance-alike": "all {count:worker} have about the same number of points, speed and passes",
    "balance-even": "the passes of all workers will be within {bound:g} of their mean (largest"
    " difference: {apart:.2f})",
    "balance-uncertain": "the workers differ by no more than the error of their measured times",
    "balance-passes": "{workers} would fall behind: {seconds:.1f} s from now {workers:it|they} would"
    " have made {passes:.1f} passes, against {target_passes:.1f} of {targets}; a point takes"
    " {workers:it|them} {times:.1f} times as long",
    "balance-pass": "{workers} would finish this pass {seconds:.1f} s after {targets}; a point"
    " takes {workers:it|them} {times:.1f} times as long",
    "balance-finish": "{workers} would finish {seconds:.1f} s after {targets}; a point takes"
    " {workers:it|them} {times:.1f} times as long",
    "move-no-memory": "{targets} has no memory for {nbytes:byte} of points",
    "move-unreachable": "{workers} cannot connect to {targets}: {detail}",
    "move-not-sendable": "{workers} cannot send its points: {detail}",
    "move-member-left": "{workers} or {targets} left before the move was complete",
    "move-job-ends": "the job ends",
    "migrate-given": "chunks move as --migrate {name} says",
    "migrate-off-policy": "--migrate auto means off under {name}",
    "migrate-kind": "--migrate auto means full with kind {name}: the memory of the points must move with"
    " them",
    "migrate-lease": "--migrate auto means lease: every worker can read the whole data set",
    "migrate-private": "--migrate auto means --migrate full for workers with --share-data,"
    " because every worker has its own data set",
    "move-not-shared": "{workers} was started without --share-data, so no points leave it",
    "move-withdrawn": "{targets} does not share its points any more",
    "move-visited": "the points were being visited at the time of the move",
    "move-shared-anew": "all chunks are divided again among {members:member}",
    "target-unreported": "--target names {target}, which no worker has reported yet; workers have"
    " reported {names}",
    # sentences about versions from which no parameters are computed
    "m-steps-held": "{absent} of {points:point} are missing from the sum: the parameters stay as they"
    " are until these points were visited again",
    "m-steps-resumed": "the missing points are in the sum again, and new parameters are computed, after"
    " {versions:version} without any",
    "m-steps-without": "{absent} of {points:point} are still missing from the sum after"
    " {passes:g} passes: parameters are computed without them from now on, after"
    " {versions:version} without new ones",
    # reasons why a worker left, or why a link or a server was lost
    "done": "it was done",
    "stream-ended": "its stream has ended",
    "never-attached": "its main(worker) returned without a call of worker.attach, so it has trained"
    " nothing",
    "told-to-leave": "it was told to leave",
    "failed": "it failed: {detail}",
    "not-finite": "it failed: {detail}",
    "evicted": "it was silent for too long",
    "not-woken": "it was evicted, and has been silent since then",
    "silent-for": "it was silent for {silent_s:.1f} s",
    "cut-off": "nothing has come over the link between {name} and s{server} for {silent_s:.1f} s,"
    " although both can reach the lead",
    "servers-changed": "the servers of the job have changed",
    "server-cut-off": "{workers} cannot reach it, although it can reach the lead",
    "servers-cut-off": "s{by} cannot reach it, although it can reach the lead",
    "came-back": "it came back over another link",
    "link-ended": "{detail}",
    "link-lost": "{name} lost its link to {peer}: {detail}",
    "rejoin-failed": "{cause}; {attempt}",
    "unreachable": "its link to s{by} ended: {detail}",
    "silent": "{name} has been silent for {silent_s:.2f} s; it is suspect after {limit}",
    "server-silent": "s{server} has been silent for {silent_s:.2f} s; it is suspect after {limit}",
    "server-removed": "s{server} is not in the job any more: {cause}",
    "unexpected-copies": "s{server} confirmed copies in too many routing epochs that the lead has not"
    " named",
    # reasons why a process was refused
    "refused": "{detail}",
    "name-missing": "an empty name is refused",
    "too-many-metrics": "workers reported too many different metrics: a job has at most {most}",
    "name-too-long": "a name of {characters} characters is refused: at most {most} are accepted",
    "name-unprintable": "a name with control characters is refused",
    "name-taken": "{name} was refused: a worker with this name is in the job; give another with"
    " --name",
    "other-protocol": "{name} was refused: it speaks protocol {protocol}, this job speaks {expected}",
    "other-job": "{name} was refused: it belongs to another job",
    "job-ending": "{name} was refused: the job is ending",
    "servers-full": "{name} was refused: the job has all of its {servers_wanted:server}",
    "server-taken": "server s{server} is in this job already",
    # why a server cannot be drained, and answers to a request to drain it
    "drain-unknown": "the job has no server s{server}; it has {servers}",
    "drain-lead": "the lead runs in s{server}, so s{server} cannot be drained yet; polyrhythm stop ends"
    " the job",
    "drain-early": "s{server} cannot be drained before round 1 has opened",
    "slices-stay": "slices cannot move under --sync {sync} --kind {kind}, which is for comparison only",
    "drained": "s{server} has moved its slices to other servers and has left",
    "drained-by-death": "s{server} was lost before all of its slices had moved, and their copies have"
    " taken over: {cause}",
    "model-unfit": "the servers cannot hold {name}'s model: {detail}",
    "model-differs": "{name}'s model differs: {detail}",
    "data-empty": "{name}'s data set is empty",
    "data-too-small": "{name}'s data set has {points:point}, fewer than --min-batch {least}",
    "data-differs": "{name}'s data set has {points:point}, the job's has {expected}; if every"
    " worker has its own data set, give --data-private",
    "data-unlike": "{name}'s data set differs from that of {first} in {differs}: if workers draw"
    " their"
    " points at random, let all draw with the same seed, for example torch.manual_seed(worker.seed);"
    " if every worker has its own data set, give --data-private; if the points are the same, give"
    " the data set the same attribute `fingerprint` (a text) on all workers",
    "data-changed": "{name} gave worker.batches a data set of {points:point}, but has given it one"
    " of {expected} before: a worker trains on one data set",
    "data-lost": "the {points:point} of {name} are lost with it, and no pass includes them any more:"
    " the job has {total:point} left",
    "data-partly-lost": "{name} is gone: {kept} of its points, which it has shared, stay with other"
    " workers; {points} are lost, and no pass includes them any more: the job has {total:point} left",
    "data-lost-later": "{points:point} of {name} are lost: {name} is gone, and the workers that had"
    " received them are gone too: the job has {total:point} left",
    "data-returned": "{points:point} of {name} go back to it, because the workers that held them are"
    " gone",
    "data-replaced": "{name} is back with a new data set of {points:point} (before: {before}); no pass"
    " includes its old points any more",
    "data-replaced-partly": "{name} is back with a new data set of {points:point} (before: {before});"
    " {kept} of its old points, which it has shared, stay with other workers, and no pass includes the"
    " rest of them any more",
    "data-not-back": "{name} has not announced its data set of {points:point} again since the job"
    " resumed: passes do not wait for it any longer, and the job has {total:point}",
    "data-unannounced": "{name} has not announced a data set: passes do not wait for it any longer, and"
    " the job has {total:point}",
    "data-absent": "{name} has not announced its data set yet: until it does, passes leave its"
    " {points:point} out",
    "data-back": "{name} is back with its {points:point}, and passes include them again: the job"
    " now has"
    " {total:point}",
    "data-partly-back": "{name} is back with its {all:point}: passes again include the {points} that"
    " were lost, and other workers have the rest, which it has shared: the job now has {total:point}",
    "data-differs-from-checkpoint": "{name}'s data set has {points:point}, the checkpoint's has"
    " {expected}",
    "too-many-contributions": "{name} has {contributions} contributions in flight: at most {most} are"
    " allowed",
    "step-order": "the steps of {name} were {seen}, but the order of all workers is {expected}: the"
    " models must make their steps in the same order in every worker and every cycle; --kind local"
    " allows any order",
    "unknown-model": "{name} sent a step of model {model}, which the job does not have",
    "weight": "{name}'s contribution weighs {weight}: it must be a positive number, and at least"
    " {least}",
    "not-a-server": "s{by}: the hello of a server must have the number of another server",
    "not-a-worker": "s{by}: the hello of a worker must have the number and the incarnation of an"
    " admitted worker",
    "dials-itself": "s{by}: this server opens the link to s{server} itself",
    "too-many-servers-wait": "s{by}: too many servers wait until the lead announces them",
    "too-many-workers-wait": "s{by}: too many workers wait until the lead announces them",
    "not-the-lead": "s{by}: an operator must connect to the lead, which does not run here",
    "not-an-operator": "only an operator may send this request",
    "asked-already": "{name} has sent a request already; each link carries one",
    "unknown-request": "the lead does not know the request '{what}'",
    "not-named": "s{by}: the lead has not named {peer}, incarnation {incarnation}, to this server",
    "too-late": "{name} came too late: {cause}",
    # sentences about how a request for a checkpoint ended
    "checkpoint-made": "checkpoint {number} of round {round} is made",
    "cut-torn": "a late contribution was in some slices of s{server} and not in others; the"
    " checkpoint is tried again in the next round",
    "cut-busy": "{workers} did not contribute in time",
    "cut-server-lost": "s{server} was lost before it had written its part",
    "cut-unwritten": "{detail}",
    "cut-taken": "{detail}",
    "keeper-lost": "{name} was lost before it had sent the state of worker.keep; the next"
    " checkpoint asks another worker",
    "keeper-late": "{name} did not send the state in time",
    "no-keeper": "no worker that called worker.keep is a member",
    "state-refused": "{detail}",
    "no-store": "the job has no store for checkpoints: start it with --store URL",
    "store-taken": "another job writes to the store: give every job its own store",
    "ending-already": "the job is ending",
    "no-code": "it has no code for this job",
    # answers to a request for the job's code
    "code-sent": "the job's file was sent",
    "code-refused": "{detail}",
    "code-none": "the job was not started from a file, so it has no code that can be sent",
    # answers to a request for a page of the journal
    "journal-sent": "a page of the journal was sent",
    "journal-unread": "the journal cannot be read: {detail}",
    # reasons why a worker evaluates the model for all workers
    "lowest-number": "it has the lowest number of all members",
    "evaluator-gone": "{name} is gone",
    # reasons why a job, or a process of a job, ended
    "goal": "the job reached its goal: {goal}",
    "goal-not-finite": "the job reached its goal ({goal}), but the objective is not finite: lower the"
    " rate, or clip the gradients",
    "overtime": "the time limit (--max-seconds) passed {after_s:.0f} s ago, and no update was applied"
    " since: the job ends, and waits only a moment longer for {missing}",
    "hung": "its training loop had not ended {after_s:.0f} s after the time limit (--max-seconds)",
    "unattached": "it had not attached a model {after_s:.0f} s after it joined",
    "not-opened": "round 1 did not open, because none of {joined:worker} had attached a model:"
    " --start-timeout ({start_s:g} s) and --max-seconds ({limit_s:g} s) are over",
    "stopped": "stopped on request{of_operator}",
    "stopping": "the job stops; waiting for {workers:worker} to leave the training loop and to run the"
    " code after it",
    "not-saved": "the trained model could not be saved: {cause}",
    "not-written": "{detail}",
    "model-held": "the trained model cannot be saved yet, and the servers hold it in memory: {detail}",
    "copies-lost": "a server was lost that had copies of it; it is copied again",
    "no-progress": "no part of the model was written for a minute; {servers} {servers:was|were}"
    " asked for parameters",
    "slices-lost": "server s{server} died ({cause}), and with it all copies of {slices:slice},"
    " {mb:.1f} MB: the job cannot go on",
    "state-lost": "no worker is left that had the parameters of round {round}, which"
    " --optimizer-on workers keeps on workers",
    "server-died": "server s{server} died ({cause}); without replicas its slices are lost",
    "rolled-back": "rolling back to checkpoint {number}, of round {round}: {lost:round after it is"
    " lost|rounds after it are lost}; the job continues with {left:server}",
    "resumed-in-vain": "the job was resumed {times} times from checkpoint {number} and made no new"
    " one: it ends",
    "lead-gone": "the lead is gone: {detail}",
    "lead-lost": "the lead has sent nothing for {silent_s:.1f} s (--lead-timeout {timeout_s:g})",
    "no-batches": "--epochs and --target-change count passes over worker.batches(), which no worker"
    " uses: give --rounds",
    "target-missing": "the job cannot reach its goal: no worker reports {target}, and workers report"
    " {names}; correct --target, or call worker.evaluate with that name",
    "idle": "no worker had anything to contribute for {rounds:round}, and the goal is not reached",
    "worker-failed": "{name} left: {cause}; with --on-error end, this ends the job",
    "only-worker-failed": "no worker is left",
    "nan-end": "the job ends (--on-nan end): {detail}",
    "all-skipped": "the last {contributions:contribution} of all workers were left out, because they"
    " were not finite: the model has likely diverged; begin again with a lower learning rate",
    "no-steps": "the last {contributions:contribution} of all workers were left out, because the"
    " training loops made no step: call optimizer.step() in the loop",
    "job-failed": "{detail}",
    "streams-ended": "the streams of the workers have ended",
    "deserted": "all workers left before the job reached its goal",
    "device-shared": "{workers} share {device}: there are more workers than devices",
    "cuda-not-forked": "the workers use cpu: a module that this Python imports at its start has"
    " initialised CUDA, and processes that are forked afterwards cannot use it; let main(worker)"
    " import the module",
    "respawn": "{name} failed: {detail}; it is started again in {after_s:g} s",
    "given-up": "{name} failed: {detail}; it is not started again, because it died {deaths} times in"
    " a row within {within_s:g} s of its start",
    "no-start": "server {name} could not be started: it died {deaths} times in a row within"
    " {within_s:g} s of its start ({detail})",
    # sentences about a cluster
    "actor-died": "{name} died: {detail}",
    "node-lost": "node {node} died{detail}; on it: {on_it}",
    "node-drains": "node {node} will be removed soon; leaving: {on_it}",
    "node-drains-lead": "node {node} will be removed soon; the lead runs there, in {on_it}, and"
    " cannot move, so the job ends with this node; with --store it could"
    " continue from a checkpoint",
    "node-drains-lead-cut": "node {node} will be removed soon; the lead runs there, in {on_it},"
    " and cannot move; it takes a checkpoint now, from which the job can"
    " continue",
}
GOALS = {
    "rounds": "{rounds:round}",
    "passes": "{passes:pass|passes} over the data",
    "points": "{points:point}",
    "target": "{metric} {measured}, wanted {bound} {wanted:g}",
    "change": "the objective changed by {change:.2g} in a pass, less than {bound:g}",
    "seconds": "{seconds:g} seconds",
    "terminated": "the algorithm has ended ({why})",
}
"""For each code of a goal, the name of the goal in messages."""
NOTICED = {
    "link-ended": "the end of its link",
    "unreachable": "s{by}, whose link to it ended",
    "server-silent": "its silence",
    "server-cut-off": "the silence of its links to most workers",
    "servers-cut-off": "the silence of its link to s{by}",
}
"""For each code of a reason, the words for how the loss of a server was noticed."""

DIFFERENCES = {
    "form": "the types or shapes of its columns",
    "values": "the integers, texts or bytes of some points",
    "numbers": "the floating-point numbers of some points",
    "fingerprint": "its attribute `fingerprint`",
}
"""The differences between the data set of a worker and that of the first worker, in words."""
