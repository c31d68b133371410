"""`myapp`: how a dog grows. The smallest app that uses every feature of the contract; docs/apps.md
explains the contract with it.

It has one sequential model, `heightWeightReport`, whose program (`growth_program`) is a separate
process that needs only Python's standard library; a stateless, three stateful and an analysis
method; and a download.
"""

import csv
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...runtime.filesystems import write_atomically
from ..app import App, AppError, Data, Field, Model, Prepared, Report, Run, checked
from . import growth_program

#: Height (cm) and weight (kg) of grown dogs.
BREEDS = {
    "Beagle": (38.0, 11.0),
    "Great Dane": (80.0, 65.0),
    "Labrador": (58.0, 31.0),
    "Pug": (30.0, 7.5),
}
OWN = "own numbers"
#: The user's own dogs, in the library.
DOGS = "dogs.json"
MAX_DOGS, MAX_NAME = 1000, 64
CSV = "heightWeight.csv"

MODEL = Model(
    name="heightWeightReport",
    title="Height and weight",
    kind="sequential",
    fields=(
        Field(name="breed", title="Breed", default="Labrador", choices=(*BREEDS, OWN)),
        Field(
            name="adultHeight",
            title="Height when grown, if no breed is chosen",
            default=58.0,
            minimum=5.0,
            maximum=120.0,
            unit="cm",
        ),
        Field(
            name="adultWeight",
            title="Weight when grown, if no breed is chosen",
            default=31.0,
            minimum=0.5,
            maximum=120.0,
            unit="kg",
        ),
        Field(name="dog", title="One of my dogs (instead of a breed)", default=""),
        Field(name="years", title="Years", default=2.0, minimum=0.5, maximum=20.0, unit="years"),
        Field(
            name="paceSecs",
            title="Seconds to take over it",
            default=0.0,
            minimum=0.0,
            maximum=3600.0,
            unit="s",
        ),
    ),
    reports=(
        Report(
            name="heightWeightReport", title="Height and weight of a growing dog", picture="curves"
        ),
    ),
)


# ---- the run


def parameters(data: Data, model: str) -> Data:
    return checked(data, MODEL)


def lib_files(data: Data) -> tuple[str, ...]:
    return (DOGS,) if checked(data, MODEL)["dog"] else ()


def prepare(run: Run) -> Prepared:
    given = checked(run.data, MODEL)
    if given["dog"]:
        dog = _find(_dogs(run.lib), str(given["dog"]))
        height, weight = dog["height"], dog["weight"]
    elif given["breed"] == OWN:
        height, weight = given["adultHeight"], given["adultWeight"]
    else:
        height, weight = BREEDS[str(given["breed"])]
    program_input = {
        "adultHeight": height,
        "adultWeight": weight,
        "years": given["years"],
        "paceSecs": given["paceSecs"],
    }
    (run.run_dir / "in.json").write_text(
        json.dumps(program_input, indent=1) + "\n", encoding="utf-8"
    )
    (run.run_dir / "parameters.py").write_bytes(Path(growth_program.__file__).read_bytes())
    return Prepared(command=(sys.executable, "-P", "parameters.py"))


def result(run: Run) -> Any:
    grown = _grown(run)
    years = [w / growth_program.WEEKS_A_YEAR for w in grown["weeks"]]
    return {
        "title": "Height and weight of a growing dog",
        "xLabel": "Age [years]",
        "xRange": [years[0], years[-1]],
        "x": [round(y, 4) for y in years],
        "plots": [
            {"label": "Height [cm]", "points": grown["height"]},
            {"label": "Weight [kg]", "points": grown["weight"]},
        ],
    }


def downloads(run: Run) -> tuple[str, ...]:
    return (CSV, "growth.json") if (run.run_dir / "growth.json").exists() else ()


def download(run: Run, suffix: str) -> str:
    if suffix in ("json", "growth.json"):
        return "growth.json"
    if suffix not in ("", "csv", CSV):
        raise AppError(f"there is no download {suffix!a}; the downloads are: csv, json")
    grown = _grown(run)
    temporary = run.run_dir / f".{CSV}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8", newline="") as f:
        table = csv.writer(f)
        table.writerow(("week", "height [cm]", "weight [kg]"))
        table.writerows(zip(grown["weeks"], grown["height"], grown["weight"], strict=True))
    temporary.rename(run.run_dir / CSV)
    return CSV


def age_at(run: Run, args: Data) -> Any:
    """Analysis: return the age (weeks) at which a fraction of the final height and weight is
    reached.
    """
    share = _float(args, "share", 0.95, low=0.0, high=1.0)
    grown = _grown(run)
    return {
        quantity: next(
            w
            for w, v in zip(grown["weeks"], grown[quantity], strict=True)
            if v >= share * grown[quantity][-1]
        )
        for quantity in ("height", "weight")
    }


def _grown(run: Run) -> dict[str, Any]:
    try:
        grown: dict[str, Any] = json.loads((run.run_dir / "growth.json").read_bytes())
    except FileNotFoundError:
        raise AppError("there is no result yet: the run directory has no growth.json") from None
    return grown


# ---- methods without a run


def ideal_weight(args: Data) -> Any:
    """Stateless: return the weight (kg) of a well-proportioned grown dog of this height (cm)."""
    height = _float(args, "height", None, low=5.0, high=120.0)
    return {"weight": round(0.0092 * height**2, 2)}


def list_dogs(lib: Path, args: Data) -> Any:
    """Stateful: return the user's own dogs."""
    return {"dogs": _dogs(lib)}


def add_dog(lib: Path, args: Data) -> Any:
    """Stateful: add a dog, or replace the dog with this name."""
    name = args.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise AppError(f"name must be a text of 1 to {MAX_NAME} printable characters")
    height, weight = (
        _float(args, "height", None, low=5.0, high=120.0),
        _float(args, "weight", None, low=0.5, high=120.0),
    )
    new = {"name": name, "height": height, "weight": weight}
    with _locked(lib):
        dogs = [d for d in _dogs(lib) if d["name"] != name]
        if len(dogs) >= MAX_DOGS:
            raise AppError(f"you have {MAX_DOGS} dogs; delete one first")
        return {"dogs": _keep(lib, [*dogs, new])}


def delete_dog(lib: Path, args: Data) -> Any:
    """Stateful: delete the dog with this name."""
    with _locked(lib):
        dogs = _dogs(lib)
        gone = _find(dogs, str(args.get("name")))
        return {"dogs": _keep(lib, [d for d in dogs if d is not gone])}


def _dogs(lib: Path) -> list[dict[str, Any]]:
    """Read the list of dogs. The user may have uploaded the file, so its content is untrusted."""
    try:
        dogs = json.loads((lib / DOGS).read_bytes())
    except FileNotFoundError:
        return []
    except ValueError:
        raise AppError(f"{DOGS} in your library is not JSON; delete or replace it") from None
    if not isinstance(dogs, list) or not all(map(_is_dog, dogs)):
        raise AppError(
            f"{DOGS} in your library is not a list of dogs, each with name, height and weight; delete or replace it"
        )
    return dogs


def _is_dog(dog: Any) -> bool:
    return (
        isinstance(dog, dict)
        and isinstance(dog.get("name"), str)
        and all(
            isinstance(dog.get(n), int | float) and 0 < dog[n] < 1000 for n in ("height", "weight")
        )
    )


def _find(dogs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = next((d for d in dogs if d["name"] == name), None)
    if found is None:
        raise AppError(f"you have no dog named {name!a}")
    return found


def _keep(lib: Path, dogs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    dogs = sorted(dogs, key=lambda d: str(d["name"]))
    write_atomically(str(lib / DOGS), json.dumps(dogs).encode())
    return dogs


@contextmanager
def _locked(lib: Path) -> Iterator[None]:
    """Serialise changes of the list, because calls of one user run concurrently."""
    lib.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(lib / f".{DOGS}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _float(args: Data, name: str, default: float | None, *, low: float, high: float) -> float:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise AppError(f"{name} must be a number between {low:g} and {high:g}")
    return float(value)


app = App(
    name="myapp",
    title="A growing dog",
    version="1",
    models=(MODEL,),
    parameters=parameters,
    lib_files=lib_files,
    prepare=prepare,
    result=result,
    downloads=downloads,
    download=download,
    analysis={"ageAt": age_at},
    stateful={"listDogs": list_dogs, "addDog": add_dog, "deleteDog": delete_dog},
    stateless={"idealWeight": ideal_weight},
)
