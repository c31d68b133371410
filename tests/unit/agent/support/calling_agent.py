"""The call handling of an agent as a separate process, for a test that kills it. It makes the calls
in its arguments and waits.

python calling_agent.py PLACE '[[method, args], ...]'
"""

import asyncio
import json
import sys
from pathlib import Path

from jobscribe.agent.host.login_environment import LoginEnvironment
from jobscribe.agent.workers import call_queue
from jobscribe.agent.workers.call_queue import CallQueue
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import Call
from jobscribe.runtime.log.destinations import Stream
from jobscribe.runtime.log.logger import Direct, Log


async def serve() -> None:
    place = Path(sys.argv[1])
    call_queue.LOAD_SECS = 3600.0
    log = Log("agent", Redactor([]), Direct(Stream(sys.stderr)))
    pool = CallQueue(
        log,
        LoginEnvironment(place, timeout_secs=0),
        str(place),
        place / "calls",
        ("probe=probe_app:app",),
        lambda m: None,
    )
    for i, (method, args) in enumerate(json.loads(sys.argv[2])):
        pool.call(
            Call(
                op_id=f"{i:032d}",
                job_cmd="stateless_compute",
                simulation_type="probe",
                compute_model="m",
                method=method,
                lib_dir="/lib",
                args=args,
                deadline_secs=3600,
                reply_limit=1000,
            )
        )
    while pool.worker_pid is None:
        await asyncio.sleep(0.01)
    (place / "worker").write_text(str(pool.worker_pid))
    await asyncio.sleep(3600)


asyncio.run(serve())
