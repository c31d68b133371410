"""Jobs that compute on a real GPU: its type, the turn for it, usage, profile and accounting. These
tests need a card with NVIDIA's driver, and the package nvidia-ml-py.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_lag import check_lag
from supervisor_process import UID, SupervisorProcess, ended, jid_of, req_id, spec, until

from jobscribe.drivers.local_gpus import cards, names

HELD = 512 << 20
#: Holds memory of the first card that it sees, and computes on it until the file `enough` exists.
PROGRAM = f"""
import ctypes, os, time
for name in ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/nvidia/lib/libcuda.so.1"):
    try:
        cuda = ctypes.CDLL(name)
        break
    except OSError:
        pass
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
count, device, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t({HELD}))
print(os.environ["CUDA_VISIBLE_DEVICES"], count.value, flush=True)
while not os.path.exists("enough"):
    for value in range(50):
        call("cuMemsetD32_v2", memory, value, ctypes.c_size_t({HELD // 4}))
    call("cuCtxSynchronize")
found = ctypes.c_uint32()
call("cuMemcpyDtoH_v2", ctypes.byref(found), memory, ctypes.c_size_t(4))
print("found", found.value, flush=True)
"""

pytestmark = pytest.mark.skipif(
    not cards(), reason="needs a GPU with NVIDIA's driver, and the package nvidia-ml-py"
)


@pytest.fixture(scope="module")
def gpu_site() -> Iterator[SupervisorProcess]:
    with ended(check_lag) as sites:
        sites.append(SupervisorProcess(("resources.local_cpu=8", "resources.local_gpus=auto")))
        yield sites[0].start()


def asks(*, gpus: int = 1, type_: str | None = None, **fields: Any) -> dict[str, Any]:
    role = {"name": "net", "command": [sys.executable, "-c", PROGRAM], "gpu": gpus}
    run = spec([], roles=[role | ({} if type_ is None else {"gpuType": type_})], **fields)
    del run["command"]
    return run | {"jobRunMode": "parallel"}


def why(site: SupervisorProcess, run: dict[str, Any]) -> str:
    return str(site.post("job-why", uid=UID, computeJid=jid_of(run))["sentence"])


def test_a_task_computes_on_a_card_of_its_type(gpu_site: SupervisorProcess) -> None:
    site, found = gpu_site, cards()
    type_ = names()[found[0]].split()[1]  # "H100" of "NVIDIA H100 80GB HBM3"
    first = asks(type_=type_, gpus=len(found), profile="gpu")
    second = asks(gpus=1)
    site.submit(first)
    site.running(first)

    # another one waits for its turn
    site.submit(second)
    until(lambda: "asks for 1 GPU: 0 of" in why(site, second), "it waits for a GPU")

    def busy() -> dict[str, Any] | None:
        answer = site.post("job-metrics", uid=UID, computeJid=jid_of(first), series=True)
        (task,) = answer["tasks"]
        return task if task["gpuPercent"] and task["gpuMemoryBytes"] else None

    task = until(busy, "the usage of the card is known", 5 * 8.0)
    # the memory of the program, and that of its CUDA context
    assert HELD <= task["gpuMemoryBytes"] < HELD + (2 << 30) and 0 < task["gpuPercent"] <= 100

    where = Path(
        site.post("job-tasks", uid=UID, computeJid=jid_of(first), attempt=0)["tasks"][0]["runDir"]
    )
    (where / "enough").touch()
    assert site.wait(first)["state"] == "completed"
    lines = site.output(first).body.decode()
    assert lines.split()[:2] == [",".join(found), str(len(found))] and "found 49" in lines, lines

    # the turn of the other one
    site.running(second)
    assert site.cancel(second)
    site.wait(second)

    (profile,) = where.glob("jobscribe-profiles/*/gpu-samples.dat")
    assert any(
        float(line.split()[2]) >= HELD >> 20 for line in profile.read_text().splitlines()[1:]
    ), profile.read_text()
    peak = site.post("job-metrics", uid=UID, computeJid=jid_of(first))["tasks"][0]
    assert peak["peakGpuMemoryBytes"] >= HELD
    (row,) = site.post("usage", uid=UID)["rows"]
    assert row["gpuSecs"] > 0, row


def test_types_that_are_not_here_are_refused_with_those_that_are(
    gpu_site: SupervisorProcess,
) -> None:
    body = {"reqId": req_id(), "run": asks(type_="K80")}
    answer = gpu_site.ask("POST", "/api/run-simulation", json.dumps(body).encode())
    said = answer.json()
    assert (answer.code, said["code"]) == (400, "resourceExceeded"), said
    assert names()["0"] in said["error"], said
