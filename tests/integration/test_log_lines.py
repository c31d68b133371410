"""Log lines of one run, as the debugging guide describes them: all present, in order, and found by
the ids that the guide names.
"""

import re

from supervisor_process import UID, SupervisorProcess, jid_of, shell

STAMP = r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d +\d+ +\d+ [a-z_/]+\.py:\d+:\w+ "


def test_one_run_can_be_followed_by_its_ids(site: SupervisorProcess) -> None:
    run = shell("echo hi", simName="my simulation")
    said = site.finished(run)
    jid, run_dir = jid_of(run), said["runDir"]
    site.post("trace", id=jid, logs=True)  # trace reads the logs, so all lines are written by then
    lines = site.log().splitlines()
    op = next(m[1] for line in lines if (m := re.search(r"_Op\(run, (\w+)\) runDir=", line)))
    agent = next(m[1] for line in lines if (m := re.search(r"LocalDriver\(a=(\w+) ", line)))
    assert (len(op), len(agent)) == (6, 4)
    me = rf"LocalDriver\(a={agent} k=sequential u={UID[:4]} \[\]\)"
    busy = rf"LocalDriver\(a={agent} k=sequential u={UID[:4]} \[_Op\(run, {op}\)\]\)"
    walk = [
        (
            "a request",
            rf"supervisor/\S+ class=ServerReq content=\{{'api': 'api_runSimulation'.*{run['simulationId']}.*'serverSecret': '?<REDACTED>'?",
        ),
        ("a ServerReq", rf"supervisor/\S+ ServerReq\(api_runSimulation, {jid}\)$"),
        ("the start of an agent", rf"supervisor/\S+ {me} start"),
        ("it is alive", rf"supervisor/\S+ {me} opName=alive o=None$"),
        ("an op", rf"supervisor/\S+ _Op\(run, {op}\) runDir={run_dir}"),
        ("the op is sent", rf"supervisor/\S+ {busy} _Op\(run, {op}\) runDir={run_dir}$"),
        ("the agent received it", rf"agent/\S+ opName=run o={op} runDir={run_dir}$"),
        ("the job command starts", rf"agent/\S+ script=\S+ jid={jid} runDir={run_dir}$"),
        (
            "the job command's result",
            rf"agent/\S+ cmd=_Cmd\(jid={jid} o={op} job_cmd=compute run_dir={run_dir}\) state=ended code=0",
        ),
        (
            "the supervisor received it",
            rf"supervisor/\S+ {busy} opName=run_status_update o={op} jid={jid} state=ended$",
        ),
    ]
    found = []
    for what, pattern in walk:
        at = [n for n, line in enumerate(lines) if re.search(pattern, line)]
        assert at, (what, pattern, "\n".join(lines))
        assert re.match(STAMP, lines[at[0]]), lines[at[0]]
        found.append(at[0])
    # two processes write to the log: only the lines of one process are in order
    of_supervisor = [
        n for n, (_, pattern) in zip(found, walk, strict=True) if pattern.startswith("supervisor")
    ]
    of_agent = [
        n for n, (_, pattern) in zip(found, walk, strict=True) if pattern.startswith("agent")
    ]
    assert of_supervisor == sorted(of_supervisor) and of_agent == sorted(of_agent)
    assert not [
        line
        for line in lines
        if len(set(re.findall(r"[A-Za-z0-9]{32}", line)))
        and "reqId" not in line
        and "computeJobHash" not in line
    ]


def test_the_same_lines_are_in_the_files(site: SupervisorProcess) -> None:
    run = shell("exit 4")
    site.finished(run)
    site.post("trace", id=jid_of(run), logs=True)
    supervisor = site.logged()
    (agent_log,) = (site.root / "agent").glob("*/agent.log")
    assert (
        f"ServerReq(api_runSimulation, {jid_of(run)})" in supervisor
        and "opName=run_status_update" in supervisor
    )
    assert (
        f"jid={jid_of(run)}" in agent_log.read_text()
        and "state=ended code=4" in agent_log.read_text()
    )


def test_a_trace_by_any_id_tells_the_same_story(site: SupervisorProcess) -> None:
    run = shell("true")
    site.submit(run, "request-to-trace")
    site.wait(run)
    site.post("trace", id=jid_of(run), logs=True)
    op = next(
        m[1] for line in site.log().splitlines() if (m := re.search(r"_Op\(run, (\w+)\)", line))
    )
    texts = {}
    for id_ in (jid_of(run), jid_of(run)[:13], op, "request-to-trace"):
        trace = site.post("trace", id=id_)
        assert trace["job"]["jid"] == jid_of(run)
        texts[id_] = [item["text"] for item in trace["items"]]
        assert [i["position"] for i in trace["items"]] == sorted(
            i["position"] for i in trace["items"]
        )
    assert len(set(map(tuple, texts.values()))) == 1 and len(texts[op]) >= 6


def test_a_trace_of_an_agent_tells_what_was_done_with_it_and_what_it_wrote(
    site: SupervisorProcess,
) -> None:
    run = shell("true")
    site.finished(run)
    key = str(site.agent_key())
    whole = site.post("trace", id=key, logs=True)
    short = next(
        m[1] for line in site.log().splitlines() if (m := re.search(r"LocalDriver\(a=(\w+) ", line))
    )
    assert site.post("trace", id=short, logs=True)["lines"] == whole["lines"]
    texts = {
        source: [line["text"] for line in whole["lines"] if line["source"] == source]
        for source in ("log/supervisor.log", f"agent/{key}/agent.log")
    }
    assert sum(map(len, texts.values())) == len(whole["lines"]) and whole["gaps"] == []
    started, wrote = (
        "\n".join(texts["log/supervisor.log"]),
        "\n".join(texts[f"agent/{key}/agent.log"]),
    )
    assert (
        f"LocalDriver(a={short} " in started
        and "opName=alive" in started
        and "opName=run_status_update" in started
    )
    assert f"agent {key} starts" in wrote and f"jid={jid_of(run)}" in wrote
    assert "lines" not in site.post("trace", id=key)
