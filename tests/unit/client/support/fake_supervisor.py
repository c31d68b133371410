"""A supervisor that runs nothing: the HTTP interface over plain dictionaries, with failures that a
real supervisor cannot produce on demand.

It runs on an event loop in its own thread, so plain and asynchronous clients, threads and
subprocesses can all use it.
"""

import asyncio
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import tornado.httpserver
import tornado.netutil
import tornado.web

from jobscribe.protocol.api.job_arrays import parse_index, parse_indices
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import CODES
from jobscribe.schema.fields import InvalidDocument
from jobscribe.schema.jobs.description import build_runs, parse_description
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.runs.plan import plan

TOKEN = "Vq3nB8xKp2Lw9Rt5Yc7Zm4Hd6Jf1Gs0A"
UID = "EPRSqtUW"


def error(code: str, sentence: str) -> tuple[int, bytes]:
    c = CODES[code]
    return c.http, json.dumps(
        {"state": "error", "code": code, "error": sentence, "advice": c.advice, "retry": c.retry}
    ).encode()


class FakeSupervisor:
    """Fake supervisor. `jobs` maps a computeJid to its answer in the interface; tests change it
    with `change`.
    """

    def __init__(self, root: Path, *, token: str = TOKEN) -> None:
        self.root, self.token = root, token
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        #: fields that replace those in the answer to `job-why`
        self.why: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        #: (path, answer) in order: replaces the answer to the next request to the path; an empty
        #: body closes the connection
        self.failures: list[tuple[str, tuple[int, bytes]]] = []
        #: number of events after which a stream is cut, counted down; negative: never
        self.cut_after = -1
        #: bytes that a stream sends before it is cut, in the middle of a block
        self.cut_with = b""
        self.streams_opened: list[dict[str, str]] = []
        #: content of any run's file, and the number of bytes after which a read breaks off;
        #: negative: never
        self.file, self.file_cut_after = b"", -1
        #: names and contents of any run's files, if there are several; number of files per page
        self.files: dict[str, bytes] = {}
        #: digest of every block, instead of the right one
        self.digest = ""
        self.files_page = 2
        #: files of the only library, and the maximum bytes per file
        self.library: dict[str, bytes] = {}
        self.upload_limit = 2**40
        self.on_submit: Callable[[str, dict[str, Any]], None] = lambda jid, spec: None
        #: whether to hold back the answer to this path although the request was carried out
        self.held: Callable[[str], bool] = lambda path: False
        #: array indices whose runs are refused
        self.refused_indices: set[int] = set()
        #: accounts that may sign in: name to (password, code); and the account that is signed in
        self.accounts: dict[str, tuple[str | None, str | None]] = {
            "joe": ("correct horse", "123456")
        }
        self.signed_in: str | None = None
        #: users of API tokens that are accepted beside the secret, by token
        self.api_tokens: dict[str, str] = {}
        #: the acting user that each POST names
        self.actors: list[str | None] = []
        self._serial = 1_700_000_000
        self._lock = threading.RLock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = 0
        self.start()

    # ---- start and stop

    def start(self, port: int = 0) -> None:
        """Listen (again), by default on a fresh port, and write client.json."""
        self._on_loop(self._listen, port)
        self.publish()

    def publish(self) -> None:
        path = self.root / "client.json.new"
        path.write_text(
            json.dumps({"url": self.url, "token": self.token, "uid": UID, "pid": os.getpid()})
        )
        path.chmod(0o600)
        path.replace(self.root / "client.json")

    def stop(self) -> None:
        """Stop listening and cut every connection, as a killed process does."""
        self._on_loop(self._shut)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _listen(self, port: int) -> None:
        own = [
            ("/api/events", _Events),
            ("/api/run-file", _File),
            ("/api/lib-file", _Library),
            ("/api/lib-files", _Library),
            ("/api/apps", _Apps),
            ("/api/whoami", _WhoAmI),
        ]
        app = tornado.web.Application(
            [
                *((path, handler, {"fake": self}) for path, handler in own),
                ("/api/(.*)", _Api, {"fake": self}),
            ]
        )
        self._server = tornado.httpserver.HTTPServer(app)
        sockets = tornado.netutil.bind_sockets(port, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        self._server.add_sockets(sockets)

    def drop_connections(self) -> None:
        """Close idle connections, as servers do; continue to listen."""
        self._on_loop(self._drop)

    async def _shut(self) -> None:
        self._server.stop()
        await self._drop()

    async def _drop(self) -> None:
        for connection in list(self._server._connections):
            connection.stream.close()
        await asyncio.sleep(0)

    def _on_loop(self, function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    # ---- control by tests

    def fail(
        self, path: str, code: str, sentence: str = "as the test wants it", times: int = 1
    ) -> None:
        self.failures += [(path, error(code, sentence))] * times

    def cut(self, path: str, times: int = 1) -> None:
        """Make the next request to the path be carried out, then close its connection without an
        answer.
        """
        self.failures += [(path, (0, b""))] * times

    def change(self, jid: str, **fields: Any) -> None:
        with self._lock:
            self.jobs[jid].update(fields)

    def write(self, jid: str, stream: str, data: bytes) -> None:
        with self._lock:
            self.jobs[jid][stream] += data

    def happen(self, type_: str, jid: str = f"{UID}-i9btqxdR-command") -> int:
        """Append an event to the log; return its position."""
        with self._lock:
            position = len(self.events) + 1
            event = {"type": type_, "at": 1.0}
            self.events.append(
                {"position": position, "stream": f"job/{jid}", "version": position, "event": event}
            )
            return position

    def end(
        self, jid: str, *, code: int | None = 0, signal: int | None = None, state: str | None = None
    ) -> None:
        exit_ = {"code": code, "signal": signal, "source": "keeper"}
        final = state or ("completed" if code == 0 else "error")
        self.change(
            jid, state=final, over=True, exit=exit_, reason="exit" if signal is None else "signal"
        )

    def submitted(self) -> list[dict[str, Any]]:
        return [r["run"] for p, r in self.requests if p == "run-simulation"]

    # ---- the HTTP interface

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        with self._lock:
            self.requests.append((path, body))
            return getattr(self, "_" + path.replace("-", "_"))(body)

    def _token_create(self, body: dict[str, Any]) -> dict[str, Any]:
        text = f"jst_{len(self.api_tokens):08d}_{'s' * 43}"
        self.api_tokens[text] = body["uid"]
        return {"state": "ok", "secret": text, **token_row(text, body["uid"])}

    def _token_list(self, body: dict[str, Any]) -> dict[str, Any]:
        mine = [token_row(t, uid) for t, uid in self.api_tokens.items() if uid == body["uid"]]
        return {"state": "ok", "tokens": mine}

    def _token_revoke(self, body: dict[str, Any]) -> dict[str, Any]:
        for text, uid in self.api_tokens.items():
            if uid == body["uid"] and text.split("_")[1] == body["id"]:
                del self.api_tokens[text]
                return {"state": "ok", **token_row(text, uid), "alsoRevoked": []}
        raise Refused("notFound", "there is no such token")

    def _audit(self, body: dict[str, Any]) -> dict[str, Any]:
        act = {"type": "ActedForUser", "at": 1.0, "actor": "admin001", "subject": UID}
        row = {
            "at": 1.0,
            "time": "1970-01-01 00:00:01.000Z",
            "text": "admin001 acted",
            "event": act,
        }
        return {"state": "ok", "events": [row], "next": 1 if body["after"] == 0 else None}

    def _run_simulation(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["run"]["command"][-1:] == ["refuse-me"]:
            raise Refused("badRequest", "this one not")
        return self._submit(body["run"], body["reqId"])

    def _sbatch_login_status(self, body: dict[str, Any]) -> dict[str, Any]:
        about = {
            "cluster": body["cluster"] or "alpha",
            "host": "login.example.org",
            "access": "ssh",
            "user": self.signed_in,
        }
        return {"state": "ok", "ready": self.signed_in is not None, "sentence": None, **about}

    def _sbatch_logout(self, body: dict[str, Any]) -> dict[str, Any]:
        was, self.signed_in = self.signed_in, None
        about = {"cluster": body["cluster"] or "alpha", "host": "login.example.org", "user": was}
        return {
            "state": "ok",
            **about,
            "signedOut": was is not None,
            "agentEnded": was != "lost",
            "runs": 2 if was == "ann" else 0,
        }

    def _sbatch_login(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.signed_in not in (None, body["username"]):
            raise Refused(
                "signedInAlready",
                f"you are already signed in to alpha as {self.signed_in}; sign out first: jobscribe logout alpha",
            )
        if self.accounts.get(body["username"]) != (body["password"], body["otp"]):
            raise Refused("signInRefused", "login.example.org has not accepted the password")
        self.signed_in = body["username"]
        return {**self._sbatch_login_status(body), "loginSuccess": True}

    def _run_many(self, body: dict[str, Any]) -> dict[str, Any]:
        runs = []
        for n, spec in enumerate(body["runs"]):
            if "refuse-me" in (spec["command"] or spec["roles"][0]["command"])[-1]:
                runs.append(json.loads(error("badRequest", "this one not")[1]))
            else:
                reply = self._submit(spec, f"{body['reqId']}.{n}")
                runs.append({k: reply[k] for k in ("computeJid", "computeJobSerial", "state")})
        return {"state": "ok", "runs": runs}

    def _run_array(self, body: dict[str, Any]) -> dict[str, Any]:
        spec, refused, states = body["run"], [], {}
        for n in parse_indices(body["indices"]).numbers:
            if n in self.refused_indices:
                refused.append({"index": n, **json.loads(error("anotherRun", f"not {n}")[1])})
                continue
            of_index = {**spec, "computeModel": f"{spec['computeModel']}_{n}"}
            reply = self._submit(of_index, f"{body['reqId']}.{n}")
            states[reply["state"]] = states.get(reply["state"], 0) + 1
        return {
            "state": "ok",
            "group": f"{spec['uid']}-{spec['simulationId']}",
            "simulationId": spec["simulationId"],
            "computeModel": spec["computeModel"],
            "indices": body["indices"],
            "count": len(refused) + sum(states.values()),
            "accepted": sum(states.values()),
            "states": states,
            "refusedCount": len(refused),
            "refused": refused[:2],
        }

    def _of_group(self, body: dict[str, Any]) -> list[str]:
        found = [
            jid for jid in self.jobs if jid.startswith(f"{body['uid']}-{body['simulationId']}-")
        ]
        if not found:
            raise Refused("notFound", f"there are no runs of simulation {body['simulationId']}")
        return sorted(found, key=lambda jid: (len(jid), jid))

    def _job_group(self, body: dict[str, Any]) -> dict[str, Any]:
        found = self._of_group(body)
        states = [self.jobs[jid]["state"] for jid in found]
        busy = sum(not self.jobs[jid]["over"] for jid in found)
        wanted = {None: set(states), "failed": {"error", "canceled"}}.get(
            body["status"], {body["status"]}
        )
        rows = [
            jid
            for jid in found
            if self.jobs[jid]["state"] in wanted
            and (len(jid), jid) > (len(body["after"] or ""), body["after"] or "")
        ]
        page = rows[: min(body["limit"], 3)]
        return {
            "group": f"{body['uid']}-{body['simulationId']}",
            "simulationId": body["simulationId"],
            "total": len(found),
            "counts": {
                s: states.count(s) for s in ("pending", "running", "completed", "canceled", "error")
            },
            "over": not busy,
            "busy": busy,
            "exits": [],
            "next": page[-1] if page and len(rows) > len(page) else None,
            "runs": [
                {
                    "computeJid": jid,
                    "computeJobSerial": j["serial"],
                    "index": parse_index(jid)[1],
                    "state": j["state"],
                    "over": j["over"],
                    "reason": j["reason"],
                    "error": None,
                    "exit": j["exit"] and {k: j["exit"].get(k) for k in ("code", "signal")},
                }
                for jid, j in ((jid, self.jobs[jid]) for jid in page)
            ],
        }

    def _group_cancel(self, body: dict[str, Any]) -> dict[str, Any]:
        named = None if body["indices"] is None else set(parse_indices(body["indices"]).numbers)
        found = [
            jid for jid in self._of_group(body) if named is None or parse_index(jid)[1] in named
        ]
        states = {"pending", "running"} if body["status"] is None else {body["status"]}
        hit = [jid for jid in found if self.jobs[jid]["state"] in states]
        for jid in hit:
            self.jobs[jid].update(state="canceled", over=True, reason="cancel", exit=None)
        return {
            "state": "ok",
            "group": f"{body['uid']}-{body['simulationId']}",
            "asked": len(hit),
            "canceled": len(hit),
            "over": 0,
            "missing": 0 if named is None else len(named) - len(found),
            "repeated": False,
        }

    def _run_description(self, body: dict[str, Any]) -> dict[str, Any]:
        numbers = itertools.count(1)
        try:
            made = build_runs(
                parse_description(body["description"]), body["uid"], lambda: f"{next(numbers):08d}"
            )
        except InvalidDocument as e:
            refused = Refused("badRequest", e.sentence)
            refused.answer = (
                400,
                json.dumps(
                    {**json.loads(refused.answer[1]), "problems": msgspec.to_builtins(e.problems)}
                ).encode(),
            )
            raise refused from None
        jobs: dict[str, list[dict[str, Any]]] = {}
        for job in made:
            for n, spec in enumerate(json.loads(msgspec.json.encode(job.specs))):
                if "refuse-me" in spec["command"]:
                    answer = json.loads(error("dependencyNever", "this one not")[1])
                else:
                    answer = {
                        k: v
                        for k, v in self._submit(
                            spec, f"{body['reqId']}.{job.job.name}.{n}"
                        ).items()
                        if k in ("computeJid", "computeJobSerial", "state")
                    }
                jobs.setdefault(job.job.name, []).append(answer)
        return {"state": "ok", "jobs": jobs, "warnings": []}

    def _run_plan(self, body: dict[str, Any]) -> dict[str, Any]:
        spec = msgspec.convert(body["run"], RunSpec)
        if any(r.cpu > 100 for r in spec.roles):
            raise Refused("resourceExceeded", "one of its roles asks for too many cores")
        shown: dict[str, Any] = msgspec.to_builtins(
            plan(
                (Node(host="node1", address="10.0.0.1", cpu=100, memory_mb=2**20),),
                spec,
                "/run",
                "EPRSqtUW-simulat1-command",
                7,
            )
        )
        return shown

    def _submit(self, spec: dict[str, Any], req_id: str) -> dict[str, Any]:
        jid = f"{spec['uid']}-{spec['simulationId']}-{spec['computeModel']}"
        if not any(j["reqId"] == req_id for j in self.jobs.values()):
            self._serial += 1
            self.jobs[jid] = {
                "reqId": req_id,
                "spec": spec,
                "state": "pending",
                "serial": self._serial,
                "over": False,
                "exit": None,
                "reason": None,
                "stdout": b"",
                "stderr": b"",
                "dropped": 0,
                "message": "waits for a CPU slot",
                "known": True,
            }
            self.on_submit(jid, spec)
        return self._status(jid)

    def _run_files(self, body: dict[str, Any]) -> dict[str, Any]:
        names = sorted(
            (n for n in self.files if n.split("/") > body["after"].split("/")),
            key=lambda n: n.split("/"),
        )
        page = names[: self.files_page]
        rows = [{"name": n, "size": len(self.files[n]), "mtime": 1700000000.5} for n in page]
        serial = self.jobs[body["computeJid"]]["serial"]
        return {
            "computeJid": body["computeJid"],
            "computeJobSerial": serial,
            "files": rows,
            "skipped": 0,
            "next": page[-1] if len(names) > len(page) else None,
        }

    def _run_file_digest(self, body: dict[str, Any]) -> dict[str, Any]:
        whole = self.files.get(body["name"])
        if whole is None:
            raise KeyError(body["name"])
        data = whole[body["offset"] : body["offset"] + body["length"]]
        digest = self.digest or hashlib.sha256(data).hexdigest()
        size, etag = len(whole), f'"{hash(whole)}"'
        return {"sha256": digest, "length": len(data), "size": size, "etag": etag}

    # ---- runs with roles

    def gang(
        self,
        jid: str,
        tasks: list[dict[str, Any]],
        attempt: int = 1,
        policy: dict[str, Any] | None = None,
    ) -> None:
        """Set the tasks of the run. Missing fields get the values of a newly placed task."""
        whole = [
            {
                "role": "main",
                "index": 0,
                "state": "placed",
                "exit": None,
                "address": "127.0.0.1",
                "host": "here",
                "ports": {},
                "gpus": [],
                "pid": None,
                "startedAt": None,
                "endedAt": None,
                "heldUntil": None,
                "evidence": "/nowhere",
                "attempt": attempt,
                "stdout": b"",
                "stderr": b"",
                **t,
            }
            for t in tasks
        ]
        with self._lock:
            job = self.jobs[jid]
            job["gang"] = [t for t in job.get("gang", []) if t["attempt"] != attempt] + whole
            attempts = [a for a in job.get("attempts", []) if a["number"] != attempt]
            job["attempts"] = [
                *attempts,
                {
                    "number": attempt,
                    "endedAt": None,
                    "reason": None,
                    "decided": None,
                    "retry": None,
                    "notRetried": None,
                },
            ]
            job.update(attempt=attempt, policy=policy)

    def _roles(self, job: dict[str, Any]) -> dict[str, dict[str, int]] | None:
        out: dict[str, dict[str, int]] = {}
        for t in [t for t in job.get("gang", []) if t["attempt"] == job["attempt"]]:
            states = ("placed", "running", "held", "succeeded", "failed", "stopped")
            counts = out.setdefault(t["role"], {"tasks": 0, **dict.fromkeys(states, 0)})
            counts["tasks"] += 1
            counts[t["state"]] += 1
        return out or None

    def _job_tasks(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        job = self.jobs[jid]
        wanted = body["attempt"] or job.get("attempt", 0)
        if wanted and wanted not in {a["number"] for a in job["attempts"]}:
            raise Refused("notFound", f"the run has no attempt {wanted}")
        return {
            "computeJid": jid,
            "computeJobSerial": job["serial"],
            "state": job["state"],
            "attempt": wanted,
            "roles": self._roles(job),
            "policy": job.get("policy"),
            "attempts": job.get("attempts", []),
            "tasks": [
                {k: v for k, v in t.items() if k not in ("attempt", "stdout", "stderr")}
                for t in job.get("gang", [])
                if t["attempt"] == wanted
            ],
        }

    def _run_release(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        for t in self.jobs[jid].get("gang", []):
            if (
                t["state"] == "held"
                and body["role"] in (None, t["role"])
                and body["index"] in (None, t["index"])
            ):
                t["state"] = "failed"
        return self._status(jid)

    def _status(self, jid: str) -> dict[str, Any]:
        job = self.jobs[jid]
        return {
            "state": job["state"],
            "computeJid": jid,
            "computeJobSerial": job["serial"],
            "computeJobHash": "x",
            "computeJobQueued": 1.5,
            "computeJobStart": None,
            "computeJobEnd": None,
            "elapsedTime": None,
            "reason": job["reason"],
            "error": None,
            "queueState": job.get("queue", "cpu_slot"),
            "known": job["known"],
            "roles": self._roles(job),
            "jobStatusMessage": job["message"]
            if job["state"] == "pending" or "queue" in job
            else None,
            "waitsFor": job.get("after", []),
            "exit": job["exit"],
            "over": job["over"],
            "attempt": job.get("attempt", 1),
            "runDir": f"/run/{jid}",
            "position": 1,
            "nextRequestSeconds": 1,
        }

    def _find(self, body: dict[str, Any]) -> str:
        jid = str(body["computeJid"])
        if jid not in self.jobs or not jid.startswith(body["uid"] + "-"):
            raise Refused("notFound", f"there is no job {jid}")
        return jid

    def _run_purge(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        self.jobs[jid]["state"] = "job_run_purged"
        return self._status(jid)

    def _job_tag(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        tags = set(self.jobs[jid].get("tags", ())) | set(body["add"])
        self.jobs[jid]["tags"] = sorted(tags - set(body["remove"]))
        return {"computeJid": jid, "tags": self.jobs[jid]["tags"]}

    def _run_status(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._status(self._find(body))

    def _run_cancel(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        if self.jobs[jid]["state"] in ("pending", "running") and not self.jobs[jid].get("deaf"):
            self.jobs[jid].update(
                state="canceled",
                over=True,
                reason="cancel",
                exit={"signal": 15, "source": "keeper"},
            )
        return self._status(jid)

    def _job_list(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = [
            {
                "jid": jid,
                "uid": jid[:8],
                "status": j["state"],
                "state": j["state"],
                "serial": j["serial"],
                "simulationType": "command",
                "kind": "sequential",
                "driver": "local",
                "busy": not j["over"],
                "queuedAt": j.get("queuedAt", 1.5),
                "startedAt": None,
                "endedAt": None,
                "reason": j["reason"],
                "position": i,
                "command": " ".join(j["spec"]["command"]) or None,
                "name": j["spec"]["simName"],
            }
            for i, (jid, j) in enumerate(self.jobs.items(), 1)
        ][::-1]
        rows = [
            r
            for r in rows
            if body["uid"] in (None, r["uid"]) and body["status"] in (None, r["status"])
        ]
        if tags := set(body.get("tags") or ()):
            rows = [r for r in rows if tags & set(self.jobs[r["jid"]].get("tags", ()))]
        rows = [r for r in rows if body["before"] is None or r["position"] < body["before"]]
        page = rows[: body["limit"]]
        return {"jobs": page, "next": page[-1]["position"] if len(page) == body["limit"] else None}

    def _job_log(self, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        job = self.jobs[self._find(body)]
        task = self._task_of_log(job, body)
        whole = (task or job)[body["stream"]]
        start = max(0, len(whole) - body["tail"]) if body["tail"] else body["offset"]
        data = whole[start : start + min(body["limit"], 7)]
        over = job["over"] if task is None else task["state"] not in ("placed", "running")
        end = over and start + len(data) >= len(whole)
        whose = (
            {}
            if task is None
            else {f"X-Jobscribe-{k.title()}": str(task[k]) for k in ("attempt", "role", "index")}
        )
        return data, {
            **whose,
            "X-Jobscribe-Offset": str(start),
            "X-Jobscribe-Next-Offset": str(start + len(data)),
            "X-Jobscribe-Dropped": str(job["dropped"]),
            "X-Jobscribe-End": "true" if end and not job.get("never_ends") else "false",
            "X-Run-Over": str(over),
        }

    def _task_of_log(self, job: dict[str, Any], body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the task whose log is requested. Without a role, return the task that stands for
        the attempt: `telling`, a task of the latest attempt.
        """
        if not job.get("gang"):
            return None
        number = body["attempt"] or job["attempt"]
        seat = (
            (body["role"], body["index"])
            if body["role"] is not None
            else job.get("telling", ("main", 0))
        )
        found = [t for t in job["gang"] if (t["attempt"], t["role"], t["index"]) == (number, *seat)]
        if not found:
            raise Refused("notFound", f"the run has no task {seat[0]}/{seat[1]}")
        return dict(found[0])

    def _job_story(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        return {
            "computeJid": jid,
            "events": self.events,
            "lines": [f"{e['position']} {e['event']['type']}" for e in self.events],
        }

    def _job_why(self, body: dict[str, Any]) -> dict[str, Any]:
        jid = self._find(body)
        return {
            "computeJid": jid,
            "state": self.jobs[jid]["state"],
            "cause": "exit",
            "sentence": "failed with exit code 3",
            "reason": "exit",
            "confidence": "certain",
            "attempt": 1,
            "role": "main",
            "index": 0,
            "faulthandler": None,
            "traceback": None,
            "evidence": ["exit: exit code 3 (reported by the keeper)"],
            "not": ["a time limit"],
            "lastLines": "one\ntwo \x1b[2J",
            "logs": ["/evidence/stdout.log"],
            "try": ["Correct the input.", "jobscribe job logs --stderr " + jid],
            "diagnosis": {
                "code": 9000,
                "phrase": "failed",
                "type": "user",
                "whose": "of the job",
                "behavior": "permanent",
                "again": "trying again does not help",
                "reason": "It said so.",
                "solutions": ["Correct the input."],
                "hint": "disk full",
                "matched": "two \x1b[2J",
                "excerpt": "one\ntwo \x1b[2J",
                "task": "worker-1",
            },
            **self.why,
        }

    def _call(self, body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        return b'{"said":  [1, null]}', {}

    def _begin_session(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"state": "ok"}

    def _global_resources(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"ports": list(range(20000, 20000 + body["ports"])), "ip": "127.0.0.1", "until": 1.5}

    def _trace(self, body: dict[str, Any]) -> dict[str, Any]:
        found = [jid for jid in self.jobs if jid.startswith(body["id"])]
        near = "".join(
            f"; near it: job {jid}"
            for jid in list(self.jobs)[:1]
            if jid.startswith(body["id"][:-2])
        )
        if len(found) != 1:
            raise Refused(
                "badRequest" if found else "notFound",
                f"{len(found)} jobs begin with {body['id']}{near}",
            )
        item = {
            "at": 1.5,
            "source": "job/" + found[0],
            "text": "requested",
            "component": "supervisor",
            "position": 1,
            "cause": None,
        }
        return {"id": body["id"], "job": {"jid": found[0]}, "items": [item]}


class Refused(Exception):
    def __init__(self, code: str, sentence: str) -> None:
        self.answer = error(code, sentence)


class _Handler(tornado.web.RequestHandler):
    def initialize(self, fake: FakeSupervisor) -> None:
        self.fake = fake

    def may(self) -> bool:
        given = self.request.headers.get("Authorization", "").removeprefix("Bearer ")
        if given == self.fake.token or given in self.fake.api_tokens:
            return True
        self.say(*error("unauthenticated", "the secret is missing or wrong"))
        return False

    def say(self, status: int, body: bytes) -> None:
        self.set_status(status)
        self.finish(body)

    def planned(self, path: str) -> tuple[int, bytes] | None:
        for i, (at, answer) in enumerate(self.fake.failures):
            if at == path:
                del self.fake.failures[i]
                return answer
        return None


class _Api(_Handler):
    async def post(self, path: str) -> None:
        self.fake.actors.append(self.request.headers.get("X-Jobscribe-Actor"))
        if not self.may():
            return
        planned = self.planned(path)
        if planned is not None and planned[0]:
            self.say(*planned)
            return
        body = json.loads(self.request.body)
        try:
            answer = self.fake.answer(path, body)
            deadline = time.monotonic() + 10
            while self.fake.held(path) and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            deadline = time.monotonic() + body.get("waitSecs", 0)
            if path == "job-log" and "X-Jobscribe-Role" in answer[1]:
                # keep following the task that was selected when the request arrived
                said = {
                    k: answer[1]["X-Jobscribe-" + k.title()] for k in ("attempt", "role", "index")
                }
                body |= said | {"attempt": int(said["attempt"]), "index": int(said["index"])}
            while not _worth_saying(path, answer) and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
                with self.fake._lock:
                    answer = getattr(self.fake, "_" + path.replace("-", "_"))(body)
        except Refused as e:
            self.say(*e.answer)
            return
        if planned is not None:
            self.request.connection.stream.close()
            return
        if isinstance(answer, tuple):
            for name, value in answer[1].items():
                self.set_header(name, value)
            self.finish(answer[0])
        else:
            self.finish(json.dumps(answer))


def _worth_saying(path: str, answer: Any) -> bool:
    if path in ("run-status", "job-group"):
        return bool(answer["over"])
    return path != "job-log" or bool(answer[0]) or answer[1]["X-Run-Over"] == "True"


class _Events(_Handler):
    async def get(self) -> None:
        if not self.may():
            return
        planned = self.planned("events")
        if planned is not None:
            self.say(*planned)
            return
        fake = self.fake
        fake.streams_opened.append(
            {
                "after": self.get_query_argument("after"),
                "last": self.request.headers.get("Last-Event-ID", ""),
            }
        )
        after = int(self.request.headers.get("Last-Event-ID") or self.get_query_argument("after"))
        after = len(fake.events) if after < 0 else after
        self.set_header("Content-Type", "text/event-stream")
        self.write(f"id: {after}\n\n: hello\n\n")
        await self.flush()
        while not self.request.connection.stream.closed():
            for event in fake.events[after:]:
                if fake.cut_after == 0:
                    fake.cut_after = -1
                    self.write(fake.cut_with)
                    await self.flush()
                    self.request.connection.stream.close()
                    return
                fake.cut_after -= fake.cut_after > 0
                after = event["position"]
                self.write(
                    f"id: {after}\nevent: {event['event']['type']}\ndata: {json.dumps(event)}\n\n"
                )
                await self.flush()
            await asyncio.sleep(0.005)


class _WhoAmI(_Handler):
    def get(self) -> None:
        if self.may():
            given = self.request.headers["Authorization"].removeprefix("Bearer ")
            uid = self.fake.api_tokens.get(given)
            token = None if uid is None else token_row(given, uid)
            role, scopes = ("operator", []) if uid is None else ("user", ["read", "control"])
            self.finish(json.dumps({"uid": uid, "role": role, "scopes": scopes, "token": token}))


def token_row(text: str, uid: str) -> dict[str, Any]:
    return {
        "id": text.split("_")[1],
        "uid": uid,
        "name": "laptop",
        "scopes": ["read", "control"],
        "createdAt": 1_700_000_000.0,
        "expiresAt": 1_800_000_000.0,
        "createdBy": "operator",
        "lastUsedAt": None,
        "status": "live",
    }


class _Apps(_Handler):
    def get(self) -> None:
        if self.may():
            self.finish(json.dumps({"apps": ["command", "heat"]}))


class _File(_Handler):
    async def post(self) -> None:
        planned = self.planned("run-file")
        if not self.may():
            return
        if planned is not None:
            self.say(*planned)
            return
        body, fake = json.loads(self.request.body), self.fake
        end = None if body["length"] is None else body["offset"] + body["length"]
        if fake.files and body["name"] not in fake.files:
            self.say(*error("notFound", "there is no such file"))
            return
        whole = fake.files.get(body["name"], fake.file)
        data = whole[body["offset"] : end]
        for name, value in (
            ("Content-Length", len(data)),
            ("X-Jobscribe-Size", len(whole)),
            ("ETag", '"e"'),
            ("Last-Modified", "now"),
        ):
            self.set_header(name, str(value))
        if fake.file_cut_after >= 0:
            self.write(data[: fake.file_cut_after])
            await self.flush()
            self.request.connection.stream.close()
        else:
            self.finish(data)


@tornado.web.stream_request_body
class _Library(_Handler):
    def prepare(self) -> None:
        self.body = b""

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk
        if len(self.body) > self.fake.upload_limit and not self._finished:
            self.set_header("Connection", "close")
            self.say(*error("tooLarge", "as the test wants it"))

    def get(self) -> None:
        files = [
            {"name": n, "size": len(d), "sha256": "s", "mtime": 1.5}
            for n, d in self.fake.library.items()
        ]
        self.finish(json.dumps({"files": files}))

    def put(self) -> None:
        name = self.get_query_argument("name")
        self.fake.library[name] = self.body
        self.finish(json.dumps({"name": name, "size": len(self.body), "sha256": "s"}))

    def delete(self) -> None:
        if self.fake.library.pop(self.get_query_argument("name"), None) is None:
            self.say(*error("notFound", "there is no such file"))
        else:
            self.finish(json.dumps({"state": "ok"}))
