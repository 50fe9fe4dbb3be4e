"""Compare two versions of DFC: clusters of both run side by side and take turns, pair after pair."""
