"""Secrets behind short options: which words, in commands and in texts."""

import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.redaction import REDACTED
from jobscribe.schema.jobs.withheld import Withholding, looks_secret


def withheld(*command: str) -> list[str]:
    """Return the values that are withheld; none of them is left in the command."""
    withholding = Withholding()
    spec = withholding.spec(
        RunSpec(uid="abcdefgh", simulation_id="sim00001", command=command, wrap=command)
    )
    values = [w.value for w in withholding.found]
    assert not any(v in word for v in values if len(v) > 3 for word in (*spec.command, *spec.wrap))
    return values


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("sshpass -p hunter2 ssh -p 22 host", ["hunter2"]),
        ("sshpass -phunter2 ssh host", ["hunter2"]),
        ("env A=1 /usr/bin/mysql -uroot -phunter22 -h db base", ["hunter22"]),
        ("mysql -p base", []),
        ("mongosh -u me -p 12345 host", ["12345"]),
        ("curl -u me:geheim77 http://host", ["geheim77"]),
        ("curl -ume:geheim77 http://host", ["geheim77"]),
        ("curl --user me http://host:80", []),
        ("docker login -u me -p pw12 registry", ["pw12"]),
        ("docker run -p 8080:80 image", []),
        ("redis-cli -a hunter2 get x", ["hunter2"]),
        ("ldapsearch -D cn=x -w hunter2", ["hunter2"]),
        ("7z x -psecret9 a.7z", ["secret9"]),
        ("smbclient -U me%hunter2 //host/x", ["hunter2"]),
        ("sshpass -p $PW ssh host", []),
        # other programs: what looks random
        ("mytool -p Tr0ub4dor", ["Tr0ub4dor"]),
        ("mytool -p train", []),
        ("mytool -p 8080", []),
        ("mytool -p data/run12345", []),
        ("srun -p gpu-a100x1 x", []),
        ("mkdir -p Abc12345", []),
    ],
)
def test_words_of_commands(command: str, values: list[str]) -> None:
    assert withheld(*command.split()) == values


def test_scripts_and_lines_of_output() -> None:
    script = "set -e; sshpass -p 'hunter2' ssh x | tee y; mysql -p\"$PW\" b\ncurl -u me:geheim77 x"
    assert withheld("sh", "-c", script) == ["hunter2", "geheim77"]
    line = "+ sshpass -p hunter2 ssh x"
    assert Withholding().line(line) == f"+ sshpass -p {REDACTED} ssh x"
    assert looks_secret(line) and not looks_secret("ssh -p 22; mysql -h db; python -p Abc12345")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("word", ["sshpass -p ", "sshpass ", "docker ", "'", "curl -u a:"])
def test_long_texts_do_not_take_minutes(word: str) -> None:
    assert len(Withholding().line(word * 20_000)) >= 20_000
