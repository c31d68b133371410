"""What only the server processes share: configuration with origins, pykern's pkdebug as log sink,
pkconfig's value parsers.
"""
