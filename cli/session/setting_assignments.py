"""The `--set NAME=VALUE` option: parsing of settings given on the command line."""

import click


def assignments(sets: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE texts into settings of the last configuration layer. The configuration
    loader validates the names. Raises click.BadParameter.
    """
    out = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        out[name] = value
    return out
