"""A server that somebody else started: what it was given is not known, nor what should have happened in it."""

from ...results.certificates import UNKNOWN, Check
from .mechanism import Mechanism


class Endpoint(Mechanism):
    """Whatever it does; drafts are told where it counts them."""

    def check(self, cell: dict) -> Check:
        drafts = (cell["speculation"] or {}).get("drafts")
        counted = "" if drafts is None else f"; it counted {drafts} drafts"
        return Check("mechanism", UNKNOWN, f"the server was not started by the study{counted}")
