"""`python -m dfc`: the same as the `dfc` command."""

from dfc.cli.main import main

if __name__ == "__main__":
    main()
