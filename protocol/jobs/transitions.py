"""The error of state machines whose table has no entry for a change. Standard library only, because
keepers use it.
"""


class IllegalTransition(Exception):
    """A state machine refused a change and changed nothing. This is a defect of the caller, never
    an answer to a peer.
    """

    def __init__(self, machine: str, state: str, trigger: str) -> None:
        super().__init__(f"{machine}: {trigger} is illegal in state {state}")
        self.machine, self.state, self.trigger = machine, state, trigger
