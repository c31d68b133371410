"""Inputs that are decided together with the next ones: reports of ends that nobody waits for.

A run that is submitted while another one ends shares its decision and its commit: one synced write
instead of two. To the rules it is as if the report had arrived later.
"""

from collections.abc import Callable, Sequence

from ...protocol.ids import AgentKey
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.wire.messages import RunStatusUpdate
from ..core.interface import inputs as core_inputs
from ..core.interface.inputs import AgentMessage, Input, Submit
from ..core.state.world import World


class DeferredInputs:
    def __init__(self) -> None:
        self._inputs: list[Input] = []
        self._jids: set[str] = set()

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, inputs: Sequence[Input]) -> None:
        self._inputs += inputs
        self._jids.update(jid for input_ in inputs for jid in core_inputs.jids(input_))

    def join(self, inputs: Sequence[Input]) -> Sequence[Input]:
        """Return these inputs with the deferred ones, which are not deferred any longer.

        Submissions go first, because their clients wait for the answer, unless they concern a job
        with a deferred input. All other inputs keep the order of their arrival.
        """
        if not self._inputs:
            return inputs
        first = all(isinstance(i, Submit) and not self._concerns(i) for i in inputs)
        joined = [*inputs, *self._inputs] if first else [*self._inputs, *inputs]
        self._inputs, self._jids = [], set()
        return joined

    def _concerns(self, submit: Submit) -> bool:
        return not self._jids.isdisjoint(core_inputs.jids(submit))


def may_be_deferred(
    world: World, key: AgentKey, inputs: Sequence[Input], is_watched: Callable[[str], bool]
) -> bool:
    """Return whether these inputs of one agent are ends of runs for which nobody waits: no client, and
    no run that needs the slot. is_watched: returns whether a client waits for a job.
    """
    view = world.agents.get(key)
    if view is None or view.queued or world.host_assignment.unassigned:
        return False
    messages = (i.message if isinstance(i, AgentMessage) else None for i in inputs)
    return all(
        isinstance(m, RunStatusUpdate)
        and m.execution.state == ExecutionState.ENDED
        and not is_watched(m.execution.token.jid)
        for m in messages
    )
