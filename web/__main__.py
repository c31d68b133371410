"""Entry point `python -m jobscribe.web ROOT`: the front end of `jobscribe up`, as its parent starts
it.
"""

import gc


def main() -> None:
    gc.disable()  # imported modules live until the end, so there is nothing to collect
    from .server.processes import child

    gc.enable()
    child()


if __name__ == "__main__":
    main()
