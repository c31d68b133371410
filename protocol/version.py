"""The version of this package. setup.py reads it as text; the versions of the wire protocol are in
`protocol/wire/versions`.
"""

VERSION = "0.2.0"
