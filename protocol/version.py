"""The version of this package. setup.py reads it as text; the versions of the wire protocol are in
`protocol/wire/versions`. The module also names the variable that carries the version of an app.
"""

VERSION = "0.2.0"
#: In an app's run: the version of the app in the front end, which is part of the run's hash.
APP_VERSION = "JOBSCRIBE_APP_VERSION"
