"""What is verified: one sub-package an adapter, installed as ``blocklaws.backends``; none imports another."""

if __name__ != "blocklaws.backends":
    raise ImportError(
        f"this folder is the package 'blocklaws.backends', but it was imported as {__name__!r}; "
        "a second name would make a second copy of each class. Install the checkout (pip install -e .) and import "
        "'blocklaws.backends'."
    )
