"""Reading a patch: which kinds of change it makes, and whether they are one change or several."""

from kopt_mcp.changes.reading import TIERS, Reading, off_tier, read

__all__ = ["TIERS", "Reading", "off_tier", "read"]
