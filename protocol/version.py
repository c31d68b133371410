"""The version of this package; setup.py reads it from the text. The version of the wire protocol is
in `messages`.
"""

VERSION = "0.1.0"
