"""Images and volumes of roles in submissions: accepted only if the driver has containers and the
volume exists. Each refusal has its own sentence.
"""

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import CODES, Refusal
from jobscribe.supervisor.runs.plan import plan
from jobscribe.supervisor.runs.role_validation import check_roles

OWN = "/srv/users/user0001"


def check(kit, *, containers=True, **role):
    spec = kit.spec(
        command=(), roles=(kit.role("w", 1, **role),), driver="docker" if containers else "local"
    )
    check_roles(spec, containers=containers, volumes=("data", "models"), user_dir=OWN)


def refused(kit, **fields):
    with pytest.raises(Refusal) as e:
        check(kit, **fields)
    return e.value


@pytest.mark.parametrize(
    "role",
    [
        {},
        {"image": "python:3.11"},
        {"image": "registry.example.org:5000/a/b@sha256:" + "0" * 64},
        {"volumes": ("data",)},
        {"volumes": ("models", "data", OWN, f"{OWN}/x")},
    ],
)
def test_what_a_driver_with_containers_takes(kit, role):
    check(kit, **role)


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        ({"image": "python:3.11"}, "`image`"),
        ({"volumes": ("data",)}, "`volumes`"),
        ({"image": "x", "volumes": ("data",)}, "`image` and `volumes`"),
    ],
)
def test_a_driver_without_containers_takes_neither(kit, role, keys):
    refusal = refused(kit, containers=False, **role)
    assert refusal.code == "badRequest"
    assert refusal.sentence.startswith(
        f"role 'w': it cannot have {keys}: the driver local runs tasks without containers"
    )
    assert "docker" in refusal.sentence
    check(kit, containers=False)


def test_who_says_nothing_of_containers_has_none(kit):
    with pytest.raises(Refusal, match="without containers"):
        check_roles(kit.spec(command=(), roles=(kit.role("w", 1, image="x"),)))
    asked = kit.spec(command=(), roles=(kit.role("w", 2),), ssh=True)
    check_roles(asked, containers=True)
    with pytest.raises(Refusal, match="asks for `ssh` between its tasks, which needs tasks in con"):
        check_roles(asked)


@pytest.mark.parametrize("image", ["Python", "a//b", "x:-y", "x@sha256:1"])
def test_a_name_that_no_image_can_have(kit, image):
    refusal = refused(kit, image=image)
    assert (
        refusal.code,
        "its `image` is not valid" in refusal.sentence,
        "python:3.11" in refusal.sentence,
    ) == ("badRequest", True, True)


@pytest.mark.parametrize(
    ("volumes", "words"),
    [
        (("date",), ["there is no volume of this name", "data, models"]),
        (("/etc",), ["not in your own directory", OWN, "data, models"]),
        (("/srv/users/user0002",), ["not in your own directory"]),
        ((f"{OWN}/../user0002",), ["`..`"]),
        (("x/y",), ["relative path"]),
        (("",), ["empty"]),
        (("/srv/users/user00010",), ["not in your own directory"]),
        ((f"{OWN}/a:/etc",), ["colon"]),
        (("data", "data"), ["twice"]),
        ((f"{OWN}/a", f"{OWN}//a/"), ["twice"]),
    ],
)
def test_a_volume_that_cannot_be_had(kit, volumes, words):
    refusal = refused(kit, volumes=volumes)
    assert refusal.code == "volumeRefused" and refusal.sentence.startswith("role 'w': ")
    assert [w for w in words if w not in refusal.sentence] == []
    assert (refusal.http, CODES[refusal.code].retry) == (400, False)


def test_a_site_without_volumes_says_so(kit):
    with pytest.raises(Refusal, match="this site has none"):
        check_roles(
            kit.spec(command=(), roles=(kit.role("w", 1, volumes=("data",)),)),
            containers=True,
            user_dir=OWN,
        )


@pytest.mark.parametrize("image", ["", " x", "-v", "a\n", "x" * 502, 7])
def test_what_has_not_even_the_shape_of_an_image_is_no_request(kit, image):
    data = msgspec.to_builtins(kit.spec(command=(), roles=(kit.role("w", 1),)))
    data["roles"][0]["image"] = image
    with pytest.raises(msgspec.ValidationError, match="image"):
        msgspec.convert(data, RunSpec)


def test_a_plan_says_image_and_limits_of_each_role(kit):
    roles = (
        kit.role("a", 1, image="python:3.11", volumes=("data",), memory_mb=512, shm_mb=128, cpu=2),
        kit.role("b", 1),
    )
    said = plan((kit.node(),), kit.spec(command=(), roles=roles), "/x", kit.jid_of(), 1)["roles"]
    assert [
        (r["image"], tuple(r["volumes"]), r["cpu"], r["memoryMb"], r["shmMb"]) for r in said
    ] == [
        ("python:3.11", ("data",), 2, 512, 128),
        (None, (), 1, 100, 64),
    ]
