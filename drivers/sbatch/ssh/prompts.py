"""What a site's login asks, and what it says: text in, meaning out. No connection, no secret."""

import re
from typing import Literal

#: What a prompt wants: a password, a one-time code, both as one answer (password first), a new
#: password, or something unknown.
Asked = Literal["password", "code", "both", "change", "unknown"]
#: What a site's words mean.
Meaning = Literal["locked", "accountExpired", "passwordExpired", "closed"]

#: of a site's words in a sentence of ours
WORDS_LENGTH = 300
_PROMPT_LENGTH = 60
#: names of users and hosts in a prompt mean nothing: `(ann@otp.site) Password for ann@otp.site:`
_NAMES = re.compile(r"\([^()\s]+@[^()\s]+\)|[\w.+-]+@[\w.:-]+|https?://\S+", re.IGNORECASE)
#: a code that is called a password
_CODE_PASSWORD = re.compile(
    r"(one[- ]?time|single[- ]use|dynamic|otp|totp|hotp|oath|token|einmal)[- ]?"
    r"(pass\s?words?|pass\s?codes?|pass\s?phrases?|passw(o|ö)rter|passwort|kennwort|pass\b)"
    r"|mot de passe (à usage unique|temporaire)|contraseña de un solo uso|ワンタイムパスワード|一次性密码|动态(口令|密码)",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"one[- ]?time|\b(otp|totp|hotp|oath|mfa|2fa|tokens?|tokencode|codes?|pin|duo|yubi ?key|passcodes?|tan)\b"
    r"|two[- ]?factor|second factor|verification|authenticator"
    r"|verifizierung|bestätigungscode|vérification|código|codice|認証コード|验证码|验证代码",
    re.IGNORECASE,
)
_PASSWORD_WORDS = r"pass\s?word|passwd|passwort|kennwort|mot de passe|contraseña"
_PASSWORD = re.compile(
    _PASSWORD_WORDS
    + r"|senha|heslo|hasło|lösenord|wachtwoord|salasana|пароль|パスワード|密码|口令|암호",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    rf"\b(new|retype|re-?enter|repeat|confirm|change|choose|neues|nouveau|nueva)\b.{{0,30}}({_PASSWORD_WORDS})"
    r"|\bcurrent\)? (unix |kerberos |ldap )?pass\s?word|password again",
    re.IGNORECASE,
)
_MEANINGS: tuple[tuple[Meaning, str], ...] = (
    (
        "locked",
        r"(account|user|login).{0,40}\b(locked|blocked|suspended|disabled)|locked due to"
        r"|too many (failed|login|authentication)|maximum (number of )?(tries|login|attempts)",
    ),
    (
        "accountExpired",
        r"account.{0,20}(has |is )?expired|account.{0,30}(no longer|not) (valid|active)",
    ),
    (
        "passwordExpired",
        r"password.{0,30}expired|(must|required to|need to) change your password|password change required"
        r"|change your password (immediately|now)|(administrator|root) enforced",
    ),
    (
        "closed",
        r"maintenance|system is (going )?down|logins? (are|is) (disabled|not allowed|currently)"
        r"|unprivileged users are not permitted",
    ),
)
#: Sequences for terminals, then whatever else cannot be seen.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[@-Z\\^_=>()#][0-9A-Za-z]?"
)


def asked(prompt: str, user: str = "") -> Asked:
    """What the answer has to be. user: whose name in the prompt means nothing."""
    text = _NAMES.sub(" ", prompt)
    if user:
        text = re.sub(rf"(?<!\w){re.escape(user)}(?!\w)", " ", text)
    rest = _CODE_PASSWORD.sub(" ", text)
    code = rest != text or _CODE.search(rest) is not None
    password = _PASSWORD.search(rest) is not None
    if password and code:
        return "both"
    if code:
        return "code"
    if password:
        return "change" if _CHANGE.search(rest) else "password"
    return "unknown"


def meaning(words: str) -> Meaning | None:
    """What a site's words say about the account, where they say something that we know."""
    return next(
        (what for what, pattern in _MEANINGS if re.search(pattern, words, re.IGNORECASE)), None
    )


def plain(text: str, limit: int = WORDS_LENGTH) -> str:
    """Foreign words as a part of a sentence of ours: one line, nothing that a terminal or a page
    would obey, not long.
    """
    line = "".join(c if c.isprintable() else " " for c in _ESCAPES.sub(" ", text[: 20 * limit]))
    line = " ".join(line.split())
    return line if len(line) <= limit else line[:limit].rstrip() + "..."


def quoted(prompt: str) -> str:
    """A prompt as a part of a sentence."""
    return f"'{plain(prompt, _PROMPT_LENGTH).rstrip(': ')}'"
