"""Documents, headers, durations, errors, flags: what each takes, refuses and says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def test_what_a_loop_logs_is_a_json_line() -> None:
    code = (
        "import asyncio\nfrom penstock_wire import process\n"
        "async def main():\n"
        "    async def fails():\n        raise ValueError('of nobody')\n"
        "    asyncio.create_task(fails())\n    await asyncio.sleep(0)\n    return 0\n"
        "process.log_libraries()\nprocess.run(main)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["message"], line["logger"], line["level"]) == ("library log", "asyncio", "error")
    assert "ValueError: of nobody" in line["traceback"]


class TestOpenFiles:
    @pytest.mark.parametrize(
        "program",
        [
            "from penstock_wire import process\nprocess.run(limits)",
            "import penstock_operator.__main__ as m; m.run = lambda _: limits(); sys.argv[1:] = []; m.main()",
        ],
        ids=["data plane", "operator"],
    )
    def test_a_process_opens_as_many_as_it_may(self, program: str):
        """Whatever the runtime begins with; never beyond the hard limit."""
        code = (
            "import resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))\n"
            "async def limits():\n    print(resource.getrlimit(resource.RLIMIT_NOFILE))\n    return 0\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code + program], capture_output=True, text=True, check=True
        )
        assert done.stdout == "(2048, 2048)\n"
