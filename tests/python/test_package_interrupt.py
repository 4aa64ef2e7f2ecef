"""Ctrl-C while the package works: the call ends with KeyboardInterrupt and everything is whole.

A thread of the child process sends the signal when it sees that the work has begun. Should the work
end before the signal comes, the child waits for it, so that the outcome is the same.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import syncline

PROLOGUE = """
    import os, signal, sys, threading, time
    from pathlib import Path
    import numpy as np
    import syncline

    store, replica = Path(sys.argv[1]), Path(sys.argv[2])

    def weights(step):
        result = np.arange(1 << 25, dtype=np.int32)
        result[step::97] ^= 1 << 20
        return {"w": result}

    def interrupt_when(begun):
        def watch():
            while not begun():
                pass
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=watch).start()

    def applied_one():
        try:
            return "000000" not in (replica / ".weight_sync" / "state.json").read_text()
        except FileNotFoundError:  # withdrawn while a delta is applied
            return False

    def wait():
        while True:
            time.sleep(1)
"""


def run(code: str, store: Path, replica: Path) -> list[str]:
    script = textwrap.dedent(PROLOGUE) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script, store, replica],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def weights(step: int) -> np.ndarray:
    result = np.arange(1 << 25, dtype=np.int32)
    result[step::97] ^= 1 << 20
    return result


def test_pull(store: Path, replica: Path) -> None:
    with syncline.Publisher(store, durable=False) as publisher:
        publisher.publish(None, {"w": weights(0)})
    lines = run(
        """
        interrupt_when((replica / ".weight_sync" / "incoming").exists)
        try:
            syncline.pull(store, replica)
            wait()
        except KeyboardInterrupt:
            print("interrupted")
        """,
        store,
        replica,
    )
    assert lines == ["interrupted"]
    report = syncline.pull(store, replica)
    assert report.from_version in (None, 0)
    assert syncline.verify(replica).versions == [0]
    assert np.array_equal(syncline.open_checkpoint(replica)["w"].numpy(), weights(0))


def test_pull_of_a_chain(store: Path, replica: Path) -> None:
    with syncline.Publisher(store, durable=False) as publisher:
        for step in range(4):
            publisher.publish(None, {"w": weights(step)})
    syncline.pull(store, replica, version=0)
    run(
        """
        interrupt_when(applied_one)
        try:
            syncline.pull(store, replica)
            wait()
        except KeyboardInterrupt:
            pass
        """,
        store,
        replica,
    )
    (version,) = syncline.verify(replica).versions
    held = syncline.open_checkpoint(replica)["w"].numpy()
    assert np.array_equal(held, weights(version))
    report = syncline.pull(store, replica)
    assert (report.from_version, report.version) == (version, 3)
    assert np.array_equal(held, weights(3))


def test_publish(store: Path, replica: Path) -> None:
    """The publisher can be used on: the next version carries what the interrupted one would have."""
    lines = run(
        """
        publisher = syncline.Publisher(store, durable=False)
        publisher.publish(None, weights(0))
        interrupt_when((store / ".syncline" / "staging" / "weight_v000001").exists)
        try:
            publisher.publish(None, weights(1))
            wait()
        except KeyboardInterrupt:
            print("interrupted")
        print(publisher.version)
        report = publisher.publish(None, weights(2))
        print(report.version, report.base_version)
        """,
        store,
        replica,
    )
    assert lines[0] == "interrupted"
    stands = int(lines[1])
    assert stands in (0, 1)
    assert lines[2] == f"{stands + 1} {stands}"
    syncline.pull(store, replica)
    assert np.array_equal(syncline.open_checkpoint(replica)["w"].numpy(), weights(2))


def test_a_handler_of_the_program_itself(store: Path, replica: Path) -> None:
    """Its exception comes out of the call; a handler that raises nothing ends nothing."""
    with syncline.Publisher(store, durable=False) as publisher:
        publisher.publish(None, {"w": weights(0)})
    lines = run(
        """
        class Stop(Exception):
            pass

        def stop(number, frame):
            raise Stop

        calls = []
        signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
        interrupt_when((replica / ".weight_sync" / "incoming").exists)
        print(syncline.pull(store, replica).version)
        while not calls:
            time.sleep(0.01)
        signal.signal(signal.SIGINT, stop)
        second = replica.with_name("second")
        interrupt_when((second / ".weight_sync" / "incoming").exists)
        try:
            syncline.pull(store, second)
            wait()
        except Stop:
            print("stopped")
        """,
        store,
        replica,
    )
    assert lines == ["0", "stopped"]
    assert syncline.verify(replica).versions == [0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_pull(store: Path, replica: Path, number: signal.Signals) -> None:
    with syncline.Publisher(store, durable=False) as publisher:
        publisher.publish(None, {"w": weights(0)})
    code = "import sys, syncline; syncline.pull(sys.argv[1], sys.argv[2])"
    child = subprocess.Popen([sys.executable, "-c", code, store, replica])
    while not (replica / ".weight_sync").exists() and child.poll() is None:
        pass
    os.kill(child.pid, number)
    child.wait(60)
    syncline.pull(store, replica)
    assert np.array_equal(syncline.open_checkpoint(replica)["w"].numpy(), weights(0))


def test_a_pull_that_waits_for_the_lock(store: Path, replica: Path) -> None:
    with syncline.Publisher(store) as publisher:
        publisher.publish(None, {"w": np.zeros(10)})
    syncline.pull(store, replica)
    with (replica / ".weight_sync" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = run(
            """
            for call in (lambda: syncline.pull(store, replica), lambda: syncline.verify(replica)):
                try:
                    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                    call()
                    wait()
                except KeyboardInterrupt:
                    print("interrupted")
            """,
            store,
            replica,
        )
    assert lines == ["interrupted", "interrupted"]
    assert syncline.verify(replica).versions == [0]
