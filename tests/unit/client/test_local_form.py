"""A run for a container or a cluster, as a process of this machine: nothing is dropped silently."""

import msgspec

from jobscribe.client.local_site.local_form import localized
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.api.unix_addresses import unix_path, unix_url
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.jobs.roles import TaskRole


def _spec(**fields: object) -> RunSpec:
    return RunSpec(uid="UserOne1", simulation_id="s0000001", **fields)  # type: ignore[arg-type]


def test_a_plain_command_is_unchanged_but_for_its_driver() -> None:
    spec = _spec(command=("true",), driver="docker", time_limit_secs=5.0)
    assert localized(spec, 0) == (msgspec.structs.replace(spec, driver="local"), [])


def test_each_field_of_a_cluster_request_is_named() -> None:
    """Set one field at a time: each gives a sentence with its name, also a field of a later version."""
    values = {int: 2, str: "x", tuple: ("x",)}
    for field in msgspec.structs.fields(BatchRequest):
        text = str(field.type)
        kind = tuple if "tuple" in text else int if "int" in text else str
        if field.default is False or "bool" in text:
            value: object = True
        else:
            value = values[kind]
        batch = msgspec.structs.replace(BatchRequest(), **{field.name: value})
        local, lost = localized(_spec(command=("true",), driver="sbatch", batch=batch), 0)
        assert [field.encode_name in sentence for sentence in lost] == [True], field.name
        assert local.batch is msgspec.UNSET


def test_one_node_and_one_task_are_honoured() -> None:
    batch = BatchRequest(nodes=1, tasks=1)
    assert localized(_spec(command=("true",), driver="sbatch", batch=batch), 0)[1] == []


def test_what_a_container_has_is_named_for_each_role() -> None:
    role = TaskRole(
        name="worker",
        command=("true",),
        tasks=2,
        image="a/b:1",
        volumes=("data",),
        shm_mb=128,
        gpu=1,
        gpu_type="A100",
    )
    local, lost = localized(_spec(roles=(role,), driver="docker"), 1)
    (changed,) = local.roles
    assert (changed.image, changed.volumes, changed.gpu) == (None, (), 0)
    text = "\n".join(lost)
    for word in ("image a/b:1", "volumes data", "shared memory (128 MB)", "A100", "no GPU"):
        assert word in text
    assert localized(_spec(roles=(role,), driver="docker"), 2)[0].roles[0].gpu == 1


def test_addresses_of_sockets_are_read_back() -> None:
    assert unix_path(unix_url("/tmp/a b/ü/api")) == "/tmp/a b/ü/api"
    assert unix_path("http://127.0.0.1:80") is None
    assert unix_path("http+unix://relative") is None
