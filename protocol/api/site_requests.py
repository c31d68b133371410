"""Bodies of requests about the site, for administrators. `requests` has those of jobs and users."""

import msgspec

from .requests import Sentence


class _SiteRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Encoding that all of them share; no fields."""


class TargetName(_SiteRequest, frozen=True, kw_only=True):
    """Name a target of notifications."""

    name: str


class Sweep(_SiteRequest, frozen=True, kw_only=True):
    """Make a retention pass. dry_run: report only."""

    dry_run: bool = True


class Exchange(_SiteRequest, frozen=True, kw_only=True):
    """Exchange the event log for the compacted one. keep: keep the old log aside."""

    keep: bool = True


class TokenFilter(_SiteRequest, frozen=True, kw_only=True):
    """List the API tokens of all users. live: only those that are valid now."""

    live: bool = False


class Handover(_SiteRequest, frozen=True, kw_only=True):
    """Hand the site over to a standby, if this supervisor serves it. supervisor: `HOST:PID`, or `HOST` if
    it has one supervisor.
    """

    supervisor: Sentence


class DrainChange(_SiteRequest, frozen=True, kw_only=True):
    """Begin or end a drain of a host, or without driver and host of the site: no new run starts
    there, and what runs goes on. reason: shown to users whose runs wait.
    """

    drain: bool
    driver: str = ""
    host: str = ""
    reason: Sentence = ""
