"""What workers get of each other's values of a buffer.

*mean*: the mean over the workers that changed it, weighted by points (integers: the largest value).
*first*: every worker gets the values of the evaluator, the one worker that evaluates the model for
all. *local*: every worker keeps its own values. Servers hold the values of the evaluator: these are
in the saved model and in checkpoints, and a worker that joins or resumes begins with them.
"""

MEAN, FIRST, LOCAL = "mean", "first", "local"
SHARINGS = (MEAN, LOCAL, FIRST)
