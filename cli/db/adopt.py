"""`jobscribe db adopt`: a new identity for a copied root."""

from ..session.session import command, session
from .store_access import file_root, locked_root, print_result


@command()
def adopt() -> None:
    """Give this root a new identity: for a copy of another root, or a root with parts of different
    roots.

    Only while no supervisor uses the root. For a copy, the folders of the agents are moved aside:
    their processes belong to the original and are not touched. Their jobs are reported here as lost.
    """
    from ...supervisor.process import root_identity

    s = session()
    file_root(s)
    with locked_root(s) as root:
        done = root_identity.adopt(root)
    lines = [f"{root} is now a separate root with the id {done.root_id}"]
    if done.agents_aside:
        lines.append(
            f"the folders of the original's agents are in {done.agents_aside}; remove them when you no longer need them"
        )
    print_result(
        s, "jobscribe.db.adopt/1", lines, {"rootId": done.root_id, "agentsAside": done.agents_aside}
    )
