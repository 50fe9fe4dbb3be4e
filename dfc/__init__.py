"""DFC: a distributed dataset web server for deep learning."""

__version__ = "0.1.0"
