"""`python -m jobscribe.agent --root ROOT --keeper-fd N`: an agent, as its keeper starts it."""

import argparse

from .main import run_agent


def main() -> None:
    parser = argparse.ArgumentParser(prog="jobscribe agent", description="An agent; started by its keeper, never by hand.")
    parser.add_argument("--root", required=True, help="the supervisor's root, shown in ps")
    parser.add_argument("--keeper-fd", required=True, type=int, help="inherited end of the keeper's socket pair")
    args = parser.parse_args()
    run_agent(args.keeper_fd, args.root)


if __name__ == "__main__":
    main()
