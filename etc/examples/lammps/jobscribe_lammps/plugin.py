"""The app: prepares, runs and reads LAMMPS. The decks are in `decks`; `dump`, `thermo` and
`pictures` read the output.
"""

import shutil
from pathlib import Path
from typing import Any

from jobscribe.apps.app import App, AppError, Data, Frame, Prepared, Run, checked

from . import dump, pictures, thermo
from .decks import DECKS, DUMP, LOG, Deck
from .rewriting import Values, rewritten

BINARY = "lmp"
EXAMPLES = Path("/usr/share/lammps/examples")
_INSTALL = "an administrator installs it with: apt-get install lammps lammps-examples"
_BY_MODEL = {deck.model.name: deck for deck in DECKS}
#: Without the first setting, the MPI library looks for ssh at its start and fails if there is none.
#: A job has one core.
_ENV = {"OMPI_MCA_ess_singleton_isolated": "1", "OMP_NUM_THREADS": "1"}
_UNSTABLE = ("lost atoms", "non-numeric", "domain too large", "out of range atoms")


def parameters(data: Data, model: str) -> Data:
    deck = _deck(model)
    values = checked(data, deck.model)
    deck.checked(values)
    return values


def prepare(run: Run) -> Prepared:
    deck = _deck(run.model)
    text = _text(deck, parameters(run.data, run.model))
    binary = shutil.which(BINARY)
    if binary is None:
        raise AppError(
            f"LAMMPS ({BINARY}, Debian package lammps) is not installed on this machine; {_INSTALL}"
        )
    (run.run_dir / deck.file).write_text(text, encoding="utf-8")
    # stdbuf: LAMMPS buffers its output when it writes to a file
    return Prepared(command=("stdbuf", "-oL", binary, "-in", deck.file, "-log", LOG), env=_ENV)


def progress(run: Run) -> dict[str, Any]:
    values = parameters(run.data, run.model)
    known = dump.extend(run.run_dir)
    step = thermo.last_step(run.run_dir) or 0
    return {
        "frameCount": pictures.available(run.run_dir, known, int(values["thermoEvery"])),
        "frameTotal": int(values["steps"]) // int(values["dumpEvery"]) + 1,
        "percentComplete": min(100.0, round(100 * step / int(values["steps"]), 1)),
        "step": step,
    }


def frame(run: Run, asked: Frame) -> dict[str, Any]:
    return pictures.frame(run, asked, _deck(run.model), parameters(run.data, run.model))


def outcome(run: Run, code: int) -> str | None:
    """Return LAMMPS' own error message, if any."""
    message = thermo.error(run.run_dir) if code > 0 else None
    if message is None:
        return None
    advice = (
        "; a smaller time step or slower motion may help"
        if any(w in message.lower() for w in _UNSTABLE)
        else ""
    )
    return f"LAMMPS stopped: {message}{advice}"


def downloads(run: Run) -> tuple[str, ...]:
    return tuple(n for n in (LOG, DUMP, _deck(run.model).file) if (run.run_dir / n).is_file())


def download(run: Run, suffix: str) -> str:
    """Find the file by name or by type; the log by default."""
    names = {"": LOG, "log": LOG, "dump": DUMP, "in": _deck(run.model).file}
    name = names.get(suffix, suffix)
    if name not in downloads(run):
        raise AppError(
            f"this run has no file {suffix!r}; it has {', '.join(downloads(run)) or 'none yet'}"
        )
    return name


def thermodynamics(run: Run, args: Data) -> dict[str, Any]:
    """Analysis `thermodynamics`, args `{"columns": [...]}`: curves of the log so far."""
    chosen = pictures.columns(args.get("columns"), ("temp", "epair", "etotal", "press"))
    return pictures.curves("Thermodynamics", thermo.rows(run.run_dir), chosen)


def input_deck(data: Data) -> dict[str, Any]:
    """Stateless `deck`, args `{"report", "models"}`: the input that LAMMPS would get."""
    model = app.model(str(data.get("report", "")))
    if model is None:
        raise AppError(f"report must be one of: {', '.join(_BY_MODEL)}")
    return {"deck": _text(_deck(model.name), parameters(data, model.name))}


def _deck(model: str) -> Deck:
    return _BY_MODEL[model]


def _text(deck: Deck, values: Values) -> str:
    try:
        text = (EXAMPLES / deck.path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise AppError(
            f"the deck {deck.path} (Debian package lammps-examples) is not installed on this machine; {_INSTALL}"
        ) from None
    return rewritten(text, deck.edits, deck.inserts, values)


app = App(
    name="lammps",
    title="Molecular dynamics with LAMMPS",
    version="1.0",
    models=tuple(deck.model for deck in DECKS),
    parameters=parameters,
    prepare=prepare,
    progress=progress,
    frame=frame,
    outcome=outcome,
    downloads=downloads,
    download=download,
    analysis={"thermodynamics": thermodynamics},
    stateless={"deck": input_deck},
)
