"""Every log line about an effect names its cause, and a timer gives its cause back."""

import asyncio
import json

import msgspec
import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token, agent_log_ids, execution_log_ids
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import TaskSpec
from jobscribe.runtime.log.logger import Direct, Log
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.causes import Cause, EventId
from jobscribe.supervisor.core.interface.inputs import TimerFired
from jobscribe.supervisor.effect_executor import EffectExecutor
from jobscribe.supervisor.process.counters import Counters

CAUSE = Cause(EventId("job/user0001-sim00001-command", 7), "TaskPlaced")
OTHER = Cause(None, "AgentDisconnected")
TOKEN = Token("user0001-sim00001-command", 1, 1, "main", 0)
HANDLE = {"pid": 9}


class Found:
    state, detail, sign_in = "gone", "no process", False


class Driver:
    """An agent driver whose verbs raise `error`, if it is set."""

    def __init__(self):
        self.error = None

    async def start(self, spec):
        return await self.find(HANDLE) and HANDLE

    async def find(self, handle):
        if self.error is not None:
            raise self.error
        return Found()

    async def stop(self, handle, grace):
        await self.find(handle)


class TaskDriver:
    def launch(self, *args):
        pass

    launch_gang = stop = launch


class Hub:
    """A hub with one connection that can be evicted, which has a bound log."""

    def __init__(self, key, log):
        self.connections, self.log = {key: self}, log
        self.epoch, self.asked = 1, False

    def send(self, key, message):
        pass


class Apart:
    def apart(self, key):
        return False


class Bed:
    def __init__(self, kit):
        self.key, self.text, self.told = kit.key_of(), "", []
        self.driver, redactor = Driver(), Redactor()
        log = Log("supervisor", redactor, Direct(self, form="json"))
        self.executor = EffectExecutor(
            {"local": self.driver},
            {"local": TaskDriver()},
            self,
            Hub(self.key, log),
            None,
            None,
            None,
            Apart(),
            redactor,
            log,
            Counters(),
            agent_id=lambda key: "a" * 32,
            driver_called=lambda *args: None,
        )

    def put(self, text):
        self.text += text

    def tell(self, *inputs):
        self.told += inputs

    async def causes(self, effect, cause=CAUSE):
        """Perform the effect; return the cause of each of its log lines."""
        self.text = ""
        self.executor.perform(effect, cause)
        await asyncio.gather(*self.executor._work, return_exceptions=True)
        return [json.loads(line).get("cause") for line in self.text.splitlines()]


@pytest.fixture
def bed(kit):
    return Bed(kit)


def effects(key):
    spec = TaskSpec(command=("true",), run_dir="/d")
    task = type("Task", (), {"token": TOKEN, "op_id": "o" * 32})()
    return {
        "launch": fx.LaunchTask(key, TOKEN, spec),
        "gang": fx.LaunchGang(key, None, (task,)),
        "start": fx.StartAgent(key, 1, "t" * 32),
        "find": fx.FindAgent(key, HANDLE),
        "evict": fx.EvictAgent(key, 1, HANDLE),
        "count": fx.IncrementCounter("staleEpoch", "late"),
    }


@pytest.mark.parametrize("name", ["launch", "gang", "start", "find", "evict", "count"])
async def test_a_line_about_an_effect_names_its_cause(bed, name):
    assert await bed.causes(effects(bed.key)[name]) == ["TaskPlaced@7"]
    assert await bed.causes(effects(bed.key)[name], OTHER) == ["AgentDisconnected"]


@pytest.mark.parametrize(
    "error", [Refusal("agentUnavailable", "no"), OSError(11, "no room"), RuntimeError("a bug")]
)
@pytest.mark.parametrize("effect", ["start", "find", "stop"])
async def test_a_line_about_a_failed_driver_call_names_the_cause(bed, effect, error):
    bed.driver.error = error
    asked = {**effects(bed.key), "stop": fx.StopAgent(bed.key, HANDLE)}[effect]
    found = await bed.causes(asked)
    assert found and set(found) == {"TaskPlaced@7"}


@pytest.mark.parametrize("name", ["launch", "gang", "start", "find"])
async def test_a_line_about_an_effect_carries_the_ids_of_its_agent_and_execution(bed, name):
    await bed.causes(effects(bed.key)[name])
    (line,) = map(json.loads, bed.text.splitlines())
    ids = execution_log_ids(TOKEN) if name in ("launch", "gang") else {}
    assert (agent_log_ids(bed.key) | ids).items() <= line.items()


async def test_an_effect_without_a_driver_is_said_with_its_cause(bed, kit):
    key = msgspec.structs.replace(kit.key_of(), driver="docker")
    assert await bed.causes(fx.ListTasks(key)) == ["TaskPlaced@7"]


async def test_a_timer_that_fires_comes_back_with_the_cause_of_its_last_setting(bed):
    timer, cleared = timers.StopReminder(TOKEN), timers.TimeLimit(TOKEN)
    for each in (timer, cleared):
        bed.executor.perform(fx.SetTimer(each, 60.0), OTHER)
    bed.executor.perform(fx.SetTimer(timer, 0.0), CAUSE)
    bed.executor.perform(fx.ClearTimer(cleared), CAUSE)
    async with asyncio.timeout(10):
        while not bed.told:
            await asyncio.sleep(0)
    assert bed.told == [TimerFired(timer, CAUSE)]
    assert bed.executor.sizes()["timers"] == 0
