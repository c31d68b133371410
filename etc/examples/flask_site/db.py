"""This site's own module `db`: its customers, in SQLite. jobscribe's package of that name is
`jobscribe.db`; the two do not conflict.
"""

import secrets
import sqlite3
import string
from typing import NamedTuple

from werkzeug.security import check_password_hash, generate_password_hash

_NOBODY = generate_password_hash(secrets.token_hex())
_TABLE = "CREATE TABLE IF NOT EXISTS customer (name TEXT PRIMARY KEY, uid TEXT UNIQUE, plate TEXT, password TEXT)"


class Customer(NamedTuple):
    """uid: the customer's id in jobscribe. plate: the simulation id of the customer's plate. Both
    are 8 letters and digits.
    """

    name: str
    uid: str
    plate: str


class Customers:
    def __init__(self, path: str) -> None:
        self._path = path
        with self._open() as db:
            db.execute(_TABLE)

    def add(self, name: str, password: str) -> Customer:
        customer = Customer(name, _id(), _id())
        with self._open() as db:
            db.execute(
                "INSERT INTO customer VALUES (?, ?, ?, ?)",
                (*customer, generate_password_hash(password)),
            )
        return customer

    def signed_in(self, name: str, password: str) -> Customer | None:
        """Return the customer if the password is correct. An unknown name takes as long as a wrong
        password.
        """
        found = self._one("name", name)
        right = check_password_hash(found[1] if found else _NOBODY, password)
        return found[0] if found and right else None

    def of(self, uid: str) -> Customer | None:
        found = self._one("uid", uid)
        return found[0] if found else None

    def _one(self, column: str, value: str) -> tuple[Customer, str] | None:
        with self._open() as db:
            row = db.execute(
                f"SELECT name, uid, plate, password FROM customer WHERE {column} = ?", (value,)
            ).fetchone()
        return (Customer(*row[:3]), row[3]) if row else None

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)


def _id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(8))
