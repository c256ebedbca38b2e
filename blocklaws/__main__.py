"""``python -m blocklaws`` is the command ``blocklaws``."""

from __future__ import annotations

from blocklaws.cli import main

if __name__ == "__main__":
    main()
