"""From a profile, a device and a problem to what limits the kernel and what to try next. Pure."""

from kopt_mcp.diagnosis.compose import diagnose
from kopt_mcp.diagnosis.ideas import all_skill_names

__all__ = ["all_skill_names", "diagnose"]
