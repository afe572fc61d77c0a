"""The command line: megagp fit | predict | info | demo."""

from megagp.cli.app import main

__all__ = ["main"]
