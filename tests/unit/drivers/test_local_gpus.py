"""GPUs of this machine: identifiers and names as NVIDIA's library gives them; none is no error."""

from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.drivers.local_gpus import cards, names


class NVMLError(Exception):
    """As the library's own."""


def library(*found: tuple[Any, Any], fails: str = "") -> Any:
    def call(name: str, answer: Any) -> Any:
        def called(*args: Any) -> Any:
            if name == fails:
                raise NVMLError("driver not loaded")
            return answer(*args)

        return called

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(found),
        "nvmlDeviceGetHandleByIndex": lambda n: found[n],
        "nvmlDeviceGetUUID": lambda handle: handle[0],
        "nvmlDeviceGetName": lambda handle: handle[1],
    }
    calls = {name: call(name, answer) for name, answer in answers.items()}
    return SimpleNamespace(NVMLError=NVMLError, **calls)


def test_gpus_have_names_by_number_and_by_uuid() -> None:
    found = library(("GPU-1", "Tesla K80"), (b"GPU-2", b"NVIDIA A100"))
    assert cards(lambda: found) == ("GPU-1", "GPU-2")
    named = {"GPU-1": "Tesla K80", "0": "Tesla K80", "GPU-2": "NVIDIA A100", "1": "NVIDIA A100"}
    assert names(lambda: found) == named


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetUUID"])
def test_a_machine_without_driver_has_no_gpus(fails: str) -> None:
    assert names(lambda: library(("GPU-1", "x"), fails=fails)) == {}


def test_a_gpu_without_a_name_is_a_gpu() -> None:
    found = library(("GPU-1", "x"), fails="nvmlDeviceGetName")
    assert (cards(lambda: found), names(lambda: found)) == (("GPU-1",), {"GPU-1": "", "0": ""})


def test_a_machine_without_the_library_has_no_gpus() -> None:
    def absent() -> Any:
        raise ImportError("No module named 'pynvml'")

    assert (cards(absent), names(absent)) == ((), {})
