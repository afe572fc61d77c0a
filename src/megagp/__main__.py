"""python -m megagp, which is what torchrun starts on each rank."""

from megagp.cli.app import main

main()
