"""The version of eagle3convert, in one place."""

__version__ = "0.1.0"
