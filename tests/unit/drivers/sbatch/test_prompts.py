"""Login prompts of a site: the kind of question is recognized from its text, and messages are shown
as one sanitized line.
"""

import pytest

from jobscribe.drivers.sbatch.ssh.prompts import (
    classify_message,
    classify_prompt,
    quote_prompt,
    strip_control,
)


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        ("Password: ", "password"),
        ("(ann@login1.example) Password: ", "password"),
        ("ann@otp.example's password: ", "password"),
        ("Password for ann@token-gw.example.org:", "password"),
        ("LDAP Password:", "password"),
        ("Passwort: ", "password"),
        ("Mot de passe : ", "password"),
        ("Contraseña: ", "password"),
        ("パスワード: ", "password"),
        ("Verification code: ", "code"),
        ("Your OTP:", "code"),
        ("Enter PASSCODE: ", "code"),
        ("Passcode or option (1-3): ", "code"),
        ("One-time password (OATH) for `ann': ", "code"),
        ("One time passcode: ", "code"),
        ("OTP password: ", "code"),
        ("Enter Your Microsoft verification code", "code"),
        ("First Factor or Token Code: ", "code"),
        ("TACC Token Code:", "code"),
        ("Google Authenticator: ", "code"),
        ("YubiKey for `ann': ", "code"),
        ("Einmalpasswort: ", "code"),
        ("Password + OTP: ", "both"),
        ("Password & verification code: ", "both"),
        ("Enter password followed by one-time code:", "both"),
        ("Password+TOTP:", "both"),
        ("New password: ", "change"),
        ("Retype new password: ", "change"),
        ("(current) UNIX password: ", "change"),
        ("Current password: ", "change"),
        ("Are you sure (yes/no)? ", "unknown"),
        ("Challenge 4711, response: ", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_prompt_says_what_it_wants(prompt: str, what: str) -> None:
    assert classify_prompt(prompt, "ann") == what


def test_a_user_called_token_is_asked_for_a_password() -> None:
    assert classify_prompt("Password for token: ", "token") == "password"
    assert classify_prompt("Password for token: ", "ann") == "both"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("The account is locked due to 3 failed logins. (10 minutes left to unlock)", "locked"),
        ("Your account has been temporarily locked", "locked"),
        ("Too many authentication failures", "locked"),
        ("Your account has expired; please contact your system administrator.", "accountExpired"),
        (
            "WARNING: Your password has expired. Password change required but no TTY available.",
            "passwordExpired",
        ),
        (
            "You are required to change your password immediately (administrator enforced).",
            "passwordExpired",
        ),
        ("The system is down for maintenance until Tuesday", "closed"),
        ("System is going down. Unprivileged users are not permitted to log in anymore.", "closed"),
        ("Welcome to the cluster. Unauthorized use is prohibited.", None),
        ("", None),
    ],
)
def test_a_sites_words_are_understood_where_they_can_be(words: str, what: str | None) -> None:
    assert classify_message(words) == what


def test_foreign_words_become_one_short_line_that_no_terminal_obeys() -> None:
    assert (
        strip_control("\x1b[31mAccess\x1b[0m\r\n denied\x07\u202e \x1b]0;title\x07now\x00")
        == "Access denied now"
    )
    assert len(strip_control("x" * 5000)) == 303
    assert quote_prompt("\x1b[1mPassword + OTP: ") == "'Password + OTP'"
