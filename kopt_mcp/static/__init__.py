"""What the compiler says about a kernel without a profiler or a GPU: registers, spills, widths, occupancy, waves."""

from kopt_mcp.static.client import static_profile

__all__ = ["static_profile"]
