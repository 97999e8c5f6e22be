"""What a GPU can do by its datasheet: a table as data, and the rules that find a device's row in it."""

from kopt_mcp.devices.resolve import Spec, describe_as, resolve
from kopt_mcp.devices.table import shared_bytes

__all__ = ["Spec", "describe_as", "resolve", "shared_bytes"]
