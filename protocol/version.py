"""The version of this package. setup.py reads it as text; the version of the wire protocol is in
`protocol/wire/messages`.
"""

VERSION = "0.1.0"
