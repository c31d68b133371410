"""Classification of a site's login prompts and messages. Pure: no connection, no secret."""

import re
from typing import Literal

#: Requested answer: a password, a one-time code, both in one answer (password first), a new
#: password, or unknown.
PromptKind = Literal["password", "code", "both", "change", "unknown"]
#: Meaning of a site's message.
Meaning = Literal["locked", "accountExpired", "passwordExpired", "closed"]

#: maximum length of a site's message in our sentence (characters)
WORDS_LENGTH = 300
_PROMPT_LENGTH = 60
#: Names of users and hosts in a prompt are ignored: `(ann@otp.site) Password for ann@otp.site:`
_NAMES = re.compile(r"\([^()\s]+@[^()\s]+\)|[\w.+-]+@[\w.:-]+|https?://\S+", re.IGNORECASE)
#: one-time codes that are called passwords
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
#: Terminal escape sequences.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[@-Z\\^_=>()#][0-9A-Za-z]?"
)


def classify_prompt(prompt: str, user: str = "") -> PromptKind:
    """Return which answer a prompt requests. user: a name to ignore in the prompt."""
    text = _NAMES.sub(" ", prompt)
    if user:
        text = re.sub(rf"(?<!\w){re.escape(user)}(?!\w)", " ", text)
    without_codes = _CODE_PASSWORD.sub(" ", text)
    code = without_codes != text or _CODE.search(without_codes) is not None
    password = _PASSWORD.search(without_codes) is not None
    if password and code:
        return "both"
    if code:
        return "code"
    if password:
        return "change" if _CHANGE.search(without_codes) else "password"
    return "unknown"


def classify_message(words: str) -> Meaning | None:
    """Return the meaning of a site's message, or None if unknown."""
    return next(
        (kind for kind, pattern in _MEANINGS if re.search(pattern, words, re.IGNORECASE)), None
    )


def strip_control(text: str, limit: int = WORDS_LENGTH) -> str:
    """Make foreign text safe for our sentence: one line, printable, shortened."""
    line = "".join(c if c.isprintable() else " " for c in _ESCAPES.sub(" ", text[: 20 * limit]))
    line = " ".join(line.split())
    return line if len(line) <= limit else line[:limit].rstrip() + "..."


def quote_prompt(prompt: str) -> str:
    """Quote a prompt for a sentence."""
    return f"'{strip_control(prompt, _PROMPT_LENGTH).rstrip(': ')}'"
