"""What must hold: the YAML files of this folder, installed as the package ``blocklaws.spec``. There is no code here."""

if __name__ != "blocklaws.spec":
    raise ImportError(
        f"this folder is the package 'blocklaws.spec', but it was imported as {__name__!r}; "
        "a second name would make a second copy. Install the checkout (pip install -e .) and import 'blocklaws.spec'."
    )
