"""The messages between an engine and an actor: nothing is lost, and their order is kept."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from polyrhythm.engines.ray_messages import Inbox, Outbox
from polyrhythm.engines.ray_process import RayProcess


def test_an_entry_is_returned_again_until_it_is_confirmed() -> None:
    outbox = Outbox()
    outbox.put(b"one")
    outbox.put(b"two", printed=True)
    assert outbox.take(0, 0).entries == [(False, b"one"), (True, b"two")]
    again = outbox.take(1, 0)
    assert again.first == 1 and again.entries == [(True, b"two")]
    assert outbox.take(2, 0).entries == []


def test_the_exit_status_comes_with_the_last_entry() -> None:
    outbox = Outbox()
    large = bytes(3 << 20)
    for _ in range(3):
        outbox.put(large)
    outbox.end(0)
    first = outbox.take(0, 0)
    assert len(first.entries) == 1 and first.status is None, "a call returns at most 4 MiB"
    second = outbox.take(1, 0)
    assert len(second.entries) == 1 and second.status is None
    assert outbox.take(2, 0).status == 0
    assert outbox.take(3, 0).status == 0, "a call that is repeated gets it again"


def test_an_outbox_is_full_until_its_entries_are_confirmed() -> None:
    outbox = Outbox()
    outbox.put(bytes(5 << 20))
    assert outbox.full
    outbox.take(0, 0)
    assert outbox.full
    outbox.take(1, 0)
    assert not outbox.full


def test_messages_are_read_in_the_order_of_their_numbers() -> None:
    inbox = Inbox()
    inbox.put(1, b"second")
    inbox.put(0, b"first")
    inbox.put(2, b"third")
    assert [inbox.get() for _ in range(3)] == [b"first", b"second", b"third"]


PRINTS = """
import os, sys, threading
from polyrhythm.engines.ray_messages import Outbox, OutputReader

def print_forever():
    while True:
        print("noise", flush=True)

outbox = Outbox()
reader = OutputReader(outbox)
os.unlink(sys.argv[1])
print("after the file was deleted", flush=True)
threading.Thread(target=print_forever, daemon=True).start()
reader.end()
entries = outbox.take(0, 0).entries
os._exit(0 if b"after the file was deleted\\n" in b"".join(data for _, data in entries) else 1)
"""


def test_the_output_of_a_process_ends_though_its_file_is_deleted_and_a_thread_goes_on_printing(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        words = [sys.executable, "-c", PRINTS, str(log)]
        ended = subprocess.run(words, stdout=file, stderr=subprocess.PIPE, timeout=100)
    assert ended.returncode == 0, ended.stderr


def test_a_request_of_another_version_is_refused_before_it_is_read() -> None:
    process = RayProcess("s0", "server", "gradient", 1)
    process.run(b"not for this version", b"", "0.0.0")
    heard = process._outbox.take(0, 0)
    (told,) = [data for printed, data in heard.entries if not printed]
    assert heard.status == 1 and b"install the same version on every node" in told
