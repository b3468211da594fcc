"""`python -m penstock`, which is also the command `penstock`."""

from penstock.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
