"""``python -m flip_flop``."""

from flip_flop.cli.main import main

if __name__ == "__main__":
    main()
