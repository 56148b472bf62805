"""Run `rapid-des` from a checkout: `python cli.py …`."""

from rapid_des.cli.entry import main

if __name__ == "__main__":
    main()
