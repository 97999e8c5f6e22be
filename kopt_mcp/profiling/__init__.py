"""Profile one workload of a candidate with the best instrument that may be used here, and say which one it was."""

from kopt_mcp.profiling.compiler import static_profile_json
from kopt_mcp.profiling.ladder import Ladder
from kopt_mcp.profiling.request import from_timing

__all__ = ["Ladder", "from_timing", "static_profile_json"]
