"""`python -m jobscribe.agent --root ROOT --keeper-fd N`: an agent, as its keeper starts it."""

import gc

from ..runtime import processes
from .keeper.startup_failure import last_words


def main() -> None:
    import argparse  # the first agent of a container is not started by this line, and does without

    parser = argparse.ArgumentParser(
        prog="jobscribe agent", description="An agent; started by its keeper, never by hand."
    )
    parser.add_argument("--root", required=True, help="the supervisor's root, shown in ps")
    parser.add_argument(
        "--keeper-fd", required=True, type=int, help="inherited end of the keeper's socket pair"
    )
    args = parser.parse_args()
    serve(args.root, args.keeper_fd)


def serve(root: str, keeper_fd: int) -> None:
    """Be an agent until there is no need for it. What goes wrong is told to the keeper, too."""
    processes.set_dumpable(False)  # it will be told a token; its jobs are the same unix user
    gc.disable()  # what is imported stays: nothing is garbage yet
    try:
        from .process import run_agent  # what is missing here is told to the keeper

        gc.enable()
        run_agent(keeper_fd, root)
    except Exception as error:
        last_words(keeper_fd, error)
        raise


if __name__ == "__main__":
    main()
