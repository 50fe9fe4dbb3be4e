"""The face `/v1`: DFC's own API, in JSON, and MessagePack where it is asked for."""
