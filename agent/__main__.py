"""`python -m jobscribe.agent --root ROOT --keeper-fd N`: start an agent, as its keeper does."""

import gc

from ..runtime import processes
from .keeper.startup_failure import report_startup_failure


def main() -> None:
    # imported here: the first agent of a container calls `serve`, without this import
    import argparse

    parser = argparse.ArgumentParser(
        prog="jobscribe agent",
        description="An agent. Its keeper starts it; do not start it by hand.",
    )
    parser.add_argument("--root", required=True, help="the supervisor's root, shown in ps")
    parser.add_argument(
        "--keeper-fd", required=True, type=int, help="inherited end of the keeper's socket pair"
    )
    args = parser.parse_args()
    serve(args.root, args.keeper_fd)


def serve(root: str, keeper_fd: int) -> None:
    """Run an agent until it ends. Report a failed startup to the keeper."""
    processes.set_dumpable(False)  # it receives a token; its jobs have the same Unix user
    gc.disable()  # imported objects stay: there is no garbage yet
    try:
        from .process import run_agent  # a failed import is reported to the keeper

        gc.enable()
        run_agent(keeper_fd, root)
    except Exception as error:
        report_startup_failure(keeper_fd, error)
        raise


if __name__ == "__main__":
    main()
