"""`python -m jobscribe.agent --root ROOT --keeper-fd N`: an agent, as its keeper starts it."""

import argparse

from .keeping.last_words import last_words


def main() -> None:
    parser = argparse.ArgumentParser(prog="jobscribe agent", description="An agent; started by its keeper, never by hand.")
    parser.add_argument("--root", required=True, help="the supervisor's root, shown in ps")
    parser.add_argument("--keeper-fd", required=True, type=int, help="inherited end of the keeper's socket pair")
    args = parser.parse_args()
    try:
        from .main import run_agent  # what is missing here is told to the keeper

        run_agent(args.keeper_fd, args.root)
    except Exception as error:
        last_words(args.keeper_fd, error)
        raise


if __name__ == "__main__":
    main()
