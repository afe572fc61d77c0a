"""The command line: megagp fit | predict | info | compare | demo | plan | bench | report."""

from megagp.cli.app import main

__all__ = ["main"]
