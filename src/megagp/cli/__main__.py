"""python -m megagp.cli, where the script `megagp` is not on the path."""

from megagp.cli.app import main

main()
