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
    """The inputs that wait for the next decision, in the order of their arrival."""

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


def are_unawaited_ends(inputs: Sequence[Input], is_watched: Callable[[str], bool]) -> bool:
    """Return whether these inputs are ends of runs for which no client waits. is_watched: returns whether
    a client waits for a job.
    """
    messages = (i.message if isinstance(i, AgentMessage) else None for i in inputs)
    return all(
        isinstance(m, RunStatusUpdate)
        and m.execution.state == ExecutionState.ENDED
        and not is_watched(m.execution.token.jid)
        for m in messages
    )


def no_run_is_queued(world: World, key: AgentKey) -> bool:
    """Return whether no run is queued at this agent, or without a host. Queues of other agents that
    share its slots are not examined.
    """
    view = world.agents.get(key)
    return view is not None and not view.queued and not world.host_assignment.unassigned
