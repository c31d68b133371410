"""`python -m jobscribe.cli` is `jobscribe`."""

from .main import main

if __name__ == "__main__":
    main()
