"""The job that counts contributions (`ledger.py`), on a Ray cluster: the files of all workers are in the
folder that the test gives."""

import os

from tests.cluster.jobs import ledger


def main(worker):
    os.chdir(worker.options["folder"])
    ledger.main(worker)
