"""Mapping files: layers of other projects, driven by ``blocklaws.backends.mapped``. There is no code here."""
