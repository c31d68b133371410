"""Debian's example decks: their fields, and the words of the deck that each field changes. No files
are read here.

The decks compute in Lennard-Jones units. Geometric lengths and velocities are in lattice spacings.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from jobscribe.apps.app import AppError, Field, Model, Report

from .rewriting import Edit, Insert, Values

LOG, DUMP = "log.lammps", "atoms.dump"
#: The columns of the log for `thermo_style custom`: name and meaning.
COLUMNS = {
    "step": "step",
    "temp": "temperature",
    "epair": "potential energy",
    "etotal": "total energy",
    "press": "pressure",
    "pxx": "pressure along x",
    "pyy": "pressure along y",
    "vol": "volume",
}
CURVES = {
    "Energy": ("Energy per atom", ("epair", "etotal")),
    "Temperature": ("Temperature", ("temp",)),
    "Pressure": ("Pressure", ("pxx", "pyy")),
}
#: The columns of a dump's rows.
ATOM = ("id", "type", "x", "y", "vx", "vy", "c_watched")
_ROW_BYTES = 52
#: Maximum size of the atom positions of a run; more is probably a mistake.
_MOST_BYTES = 4_000_000_000


class Deck(NamedTuple):
    """One input deck. speed: the velocity component to show. atoms: the approximate number of
    atoms. lift: how far the upper edge moves, in sigma.
    """

    name: str
    title: str
    path: str
    fields: tuple[Field, ...]
    edits: tuple[Edit, ...]
    speed: str
    atoms: Callable[[Values], float]
    lift: Callable[[Values], float] = lambda values: 0.0

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def coloured(self) -> dict[str, tuple[str, str]]:
        """Reports that draw atoms: the meaning of the colour, and its column in the dump."""
        return {
            self.report(""): ("type", "type"),
            self.report("Energy"): ("potential energy", "c_watched"),
            self.report("Velocity"): (f"velocity along {self.speed[1]}", self.speed),
        }

    @property
    def curves(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Reports that draw the log: title and columns."""
        return {self.report(name + "Curve"): curve for name, curve in CURVES.items()}

    @property
    def model(self) -> Model:
        atoms = tuple(
            Report(name=n, title=f"Atoms by {t}", picture="points")
            for n, (t, _) in self.coloured.items()
        )
        curves = tuple(
            Report(name=n, title=t, picture="curves") for n, (t, _) in self.curves.items()
        )
        return Model(
            name=self.report(""),
            title=self.title,
            kind="parallel",
            fields=self.fields,
            reports=atoms + curves,
        )

    def report(self, suffix: str) -> str:
        return f"{self.name}{suffix}Animation"

    def checked(self, values: Values) -> None:
        """Check conditions that involve several fields. Raises AppError."""
        if "crackLength" in values and not values["crackLength"] < values["width"]:  # type: ignore[operator]
            raise AppError("the crack (crackLength) must be shorter than the plate (width)")
        frames = int(values["steps"]) // int(values["dumpEvery"]) + 1
        size = frames * self.atoms(values) * _ROW_BYTES
        if size > _MOST_BYTES:
            raise AppError(
                f"{frames} frames of about {self.atoms(values):.0f} atoms would be {size / 1e9:.0f} GB of positions; "
                f"{_MOST_BYTES / 1e9:.0f} GB are allowed: increase dumpEvery, or run fewer steps"
            )

    @property
    def inserts(self) -> tuple[Insert, ...]:
        """Commands for our own columns in the log, flushed at once, and for the positions, sorted
        by id so that frames can be compared.
        """
        return (
            Insert(
                "thermo",
                False,
                ("thermo_style custom " + " ".join(COLUMNS), "thermo_modify flush yes"),
            ),
            Insert(
                "run",
                True,
                (
                    "compute watched all pe/atom",
                    f"dump watch all custom {{}} {DUMP} {' '.join(ATOM)}",
                    "dump_modify watch sort id flush yes format float %.4f",
                ),
                lambda v: (int(v["dumpEvery"]),),
            ),
        )


def _real(name: str) -> Callable[[Values], float]:
    return lambda values: float(values[name])


def _whole(name: str) -> Callable[[Values], float]:
    return lambda values: int(values[name])


def _fields(
    steps: int, dump: int, thermo: int, timestep: float, temperature: float, seed: int, *more: Field
) -> tuple[Field, ...]:
    return (
        Field(name="steps", title="Time steps", default=steps, minimum=1, maximum=1_000_000),
        Field(
            name="dumpEvery",
            title="Steps between frames",
            default=dump,
            minimum=1,
            maximum=1_000_000,
        ),
        Field(
            name="thermoEvery",
            title="Steps between rows of the log",
            default=thermo,
            minimum=1,
            maximum=1_000_000,
        ),
        Field(
            name="timestep",
            title="Time step",
            default=timestep,
            minimum=0.00001,
            maximum=0.5,
            unit="LJ times",
        ),
        Field(
            name="temperature",
            title="Temperature",
            default=temperature,
            minimum=0.0001,
            maximum=10,
            unit="epsilon/k",
        ),
        Field(
            name="seed",
            title="Seed of the initial velocities",
            default=seed,
            minimum=1,
            maximum=899_999_999,
        ),
        *more,
    )


def _speed(name: str, title: str, default: float, minimum: float, maximum: float) -> Field:
    return Field(
        name=name,
        title=title,
        default=default,
        minimum=minimum,
        maximum=maximum,
        unit="lattice spacings/LJ time",
    )


def _length(name: str, title: str, default: int, minimum: int, maximum: int) -> Field:
    return Field(
        name=name,
        title=title,
        default=default,
        minimum=minimum,
        maximum=maximum,
        unit="lattice spacings",
    )


def _force(name: str, title: str, default: float, minimum: float, maximum: float) -> Field:
    return Field(
        name=name,
        title=title,
        default=default,
        minimum=minimum,
        maximum=maximum,
        unit="epsilon/sigma",
    )


def _density(default: float) -> Field:
    return Field(
        name="density",
        title="Density of the lattice",
        default=default,
        minimum=0.3,
        maximum=1.2,
        unit="1/sigma^2",
    )


_RUN = (
    Edit("run", 1, _whole("steps")),
    Edit("thermo", 1, _whole("thermoEvery")),
    Edit("timestep", 1, _real("timestep")),
    Edit("lattice hex", 2, _real("density")),
)


def _spacing(values: Values) -> float:
    """Return the distance between rows of unit cells of the hexagonal lattice, in sigma."""
    return math.sqrt(3) * math.sqrt(2 / (math.sqrt(3) * float(values["density"])))


def _hexagonal(values: Values) -> float:
    return 2 * float(values["width"]) * float(values["height"])


CRACK = Deck(
    name="crack",
    title="A crack that grows in a plate under tension",
    path="crack/in.crack",
    speed="vy",
    atoms=_hexagonal,
    lift=lambda v: float(v["pullVelocity"]) * float(v["timestep"]) * int(v["steps"]) * _spacing(v),
    fields=_fields(
        5000,
        100,
        100,
        0.003,
        0.01,
        887723,
        _speed("pullVelocity", "Velocity at which the upper edge is pulled", 0.3, 0, 5),
        _length("crackLength", "Length of the first cut", 20, 0, 400),
        _length("width", "Width of the plate", 100, 10, 400),
        _length("height", "Height of the plate", 40, 10, 200),
        _density(0.93),
    ),
    edits=(
        *_RUN,
        Edit("region box block", 4, _whole("width")),
        Edit("region box block", 6, _whole("height")),
        Edit("region 2 block", 5, lambda v: int(v["height"]) - 1.25),
        Edit("region leftupper block", 4, _whole("crackLength")),
        Edit("region leftupper block", 5, lambda v: int(v["height"]) / 2),
        Edit("region leftlower block", 4, _whole("crackLength")),
        Edit("region leftlower block", 6, lambda v: int(v["height"]) / 2),
        Edit("velocity mobile create", 3, _real("temperature")),
        Edit("velocity mobile create", 4, _whole("seed")),
        Edit("velocity upper set", 4, _real("pullVelocity")),
        Edit("velocity mobile ramp", 5, _real("pullVelocity")),
        Edit("velocity mobile ramp", 8, lambda v: int(v["height"]) - 1.25),
    ),
)

FRICTION = Deck(
    name="friction",
    title="Two rough surfaces that rub",
    path="friction/in.friction",
    speed="vx",
    atoms=lambda values: 1800.0,
    fields=_fields(
        20000,
        400,
        400,
        0.0025,
        0.1,
        482748,
        _speed("slideVelocity", "Velocity of the upper body", 1.0, -10, 10),
        _density(0.9),
    ),
    edits=(
        *_RUN,
        Edit("velocity mobile create", 3, _real("temperature")),
        Edit("velocity mobile create", 4, _whole("seed")),
        Edit("fix 3 mobile temp/rescale", 5, _real("temperature")),
        Edit("fix 3 mobile temp/rescale", 6, _real("temperature")),
        Edit("velocity hi set", 3, _real("slideVelocity")),
    ),
)

_CHANNEL = (
    _length("width", "Length of the channel", 20, 5, 200),
    _length("height", "Width of the channel", 10, 5, 100),
    _density(0.7),
)
_FLOW = (
    *_RUN,
    Edit("region box block", 4, _whole("width")),
    Edit("region box block", 6, _whole("height")),
    Edit("region 2 block", 5, lambda v: int(v["height"]) - 1.25),
    Edit("velocity flow create", 3, _real("temperature")),
    Edit("velocity flow create", 4, _whole("seed")),
    Edit("fix 2 flow temp/rescale", 5, _real("temperature")),
    Edit("fix 2 flow temp/rescale", 6, _real("temperature")),
)

COUETTE = Deck(
    name="couette",
    title="Flow along a wall that moves (Couette)",
    path="flow/in.flow.couette",
    speed="vx",
    atoms=_hexagonal,
    fields=_fields(
        10000,
        200,
        200,
        0.003,
        1.0,
        482748,
        _speed("wallVelocity", "Velocity of the upper wall", 3.0, -20, 20),
        *_CHANNEL,
    ),
    edits=(*_FLOW, Edit("velocity upper set", 3, _real("wallVelocity"))),
)

POISEUILLE = Deck(
    name="poiseuille",
    title="Flow that a force drives (Poiseuille)",
    path="flow/in.flow.pois",
    speed="vx",
    atoms=_hexagonal,
    fields=_fields(
        10000,
        200,
        200,
        0.003,
        1.0,
        482748,
        _force("force", "Force on each atom", 0.5, -10, 10),
        _force("load", "Force that presses the walls together", 1.0, 0, 10),
        *_CHANNEL,
    ),
    edits=(
        *_FLOW,
        Edit("fix 6 flow addforce", 4, _real("force")),
        Edit("fix 5 upper aveforce", 5, lambda v: -float(v["load"])),
    ),
)

DECKS = (CRACK, FRICTION, COUETTE, POISEUILLE)
