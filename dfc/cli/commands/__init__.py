"""The commands of `dfc`, one file for each group of them."""
