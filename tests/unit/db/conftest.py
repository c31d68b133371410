"""Make the helpers of tests/unit/db importable for the tests of this folder."""
