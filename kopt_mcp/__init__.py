"""kopt-mcp: one guarded kernel optimisation step at a time, measured honestly and journalled."""

__version__ = "0.1.0"
