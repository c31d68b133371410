"""Asks PAM for one person, in a process of its own: a module of PAM may block, leak or crash, and
the parent ends this process at a deadline. Standard library and pamela only.

Standard input: one JSON object with service, name and password. Standard output: one JSON object
with `outcome` (ok, refused, account, error), the PAM `code`, and the `name` of the account.
"""

import contextlib
import json
import os
import pwd
import resource
import sys
from typing import Any

MODULE = "jobscribe.web.sign_in.pam_process"
#: PAM return values of a machine that is set up wrongly. All others of the authentication are one
#: outcome: who asks must not learn whether a name exists.
_BROKEN = frozenset({1, 2, 3, 4, 5, 26, 28})


def main() -> None:
    # no core dump with a password
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.loads(sys.stdin.buffer.readline())
    answer = json.dumps(asked_pam(asked["service"], asked["name"], asked["password"]))
    os.write(1, answer.encode())


def asked_pam(service: str, name: str, password: str) -> dict[str, Any]:
    """Return the outcome of authentication and account check, of one PAM transaction."""
    import pamela

    try:
        handle = pamela.authenticate(
            name, password, service=service, resetcred=0, close=False, check=False
        )
    except pamela.PAMError as e:
        return {"outcome": "error" if e.errno in _BROKEN else "refused", "code": e.errno}
    code = pamela.PAM_ACCT_MGMT(handle, 0)
    account = handle.get_item(pamela.PAM_USER) or name
    with contextlib.suppress(KeyError):
        account = pwd.getpwnam(account).pw_name  # one spelling for each account
    with contextlib.suppress(pamela.PAMError):
        pamela.pam_end(handle)
    return {"outcome": "ok" if code == 0 else "account", "code": code, "name": account}


if __name__ == "__main__":
    main()
