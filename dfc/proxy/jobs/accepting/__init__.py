"""Submitted jobs: examined, and accepted if they can be done."""
