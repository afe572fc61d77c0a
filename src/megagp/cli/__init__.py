"""The command line: megagp fit | predict | info | demo | report."""

from megagp.cli.app import main

__all__ = ["main"]
