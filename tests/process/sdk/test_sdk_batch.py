"""`@penstock.batch`: calls in a process, batched by the sidecar's queue and rules."""

from __future__ import annotations

import subprocess
import sys

FORKS = """
import asyncio, os, threading
import penstock
from penstock.handles import loop_thread

@penstock.batch
def added(numbers):
    return [number + 1 for number in numbers]

@penstock.batch
def counted(numbers):
    yield [number + 1 for number in numbers]

class Model:
    def __init__(self):
        self.began, self.open = threading.Event(), threading.Event()

    def run(self, number):
        self.began.set()
        assert self.open.wait(20)
        return number + 1

model = Model()
batcher = penstock.Batcher(model, batch_size=2)

async def used():
    answers = await asyncio.wait_for(asyncio.gather(*map(added, range(50))), 20)
    async with asyncio.timeout(20):
        return answers == list(range(1, 51)) and [piece async for piece in counted(1)] == [2]

assert asyncio.run(used())
waits = threading.Thread(target=batcher.run, args=(1,))  # which the child does not have
waits.start()
assert model.began.wait(20)
with loop_thread._lock:  # a thread may be there at this moment
    child = os.fork()
    if not child:
        loop_thread.shared_loop()
        model.open.set()
        os._exit(0 if batcher.run(1) == 2 and asyncio.run(used()) else 1)
model.open.set()
waits.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    """As behind `gunicorn --preload` and in Celery's workers: what the parent has used works in the child."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=60)
